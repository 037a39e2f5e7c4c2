"""The figures in the documents, from bench/results.json: `make figures`, or python bench/figures.py

Every measured figure stands in README or docs/*.md in a block, between two comments, `<!-- figures: NAME -->`
and `<!-- end of figures -->`. This program writes the blocks, and a test compares. Their words are in bench/figures.md,
under the same names, with places for figures as described there. A figure that was not measured is a dash.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import ROOT
from bench.results import Results, aims, load, versions

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TEMPLATES = ROOT / "bench" / "figures.md"
BLOCK = re.compile(r"(<!-- figures: ([\w-]+) -->\n)(.*?)(<!-- end of figures -->)", re.DOTALL)
_PLACE = re.compile(r"\{([\w:-]+)\.([\w/.-]+)\|(\w+)\}")
MISSING = "–"


def significant(value: float) -> str:
    """With the two digits that mean something: 86,123 is 86,000, and 2.345 is 2.3."""
    if not value:
        return "0"
    rounded = float(f"{value:.1e}")
    return f"{rounded:,.{max(1 - math.floor(math.log10(abs(rounded))), 0)}f}"


FORMS: dict[str, Callable[[Any], str]] = {
    "rate": significant,
    "ms": significant,
    "s": significant,
    "mb": significant,
    "percent": significant,
    "ratio": lambda value: f"{value:.2f}",
    "tenth": lambda value: f"{value:.1f}",
    "number": lambda value: f"{value:,}",
    "word": str,
    "major": lambda value: ".".join(value.split(".")[:2]),
    "least": lambda table: significant(min(table.values())),
    "most": lambda table: significant(max(table.values())),
}


def aim(results: Results, run: str, key: str) -> str:
    """What is aimed at, and whether it was missed."""
    words, met = aims(results)[run, key]
    return f"{words} (missed)" if met is False else words


def filled(results: Results, template: str) -> str:
    """The words with their figures."""
    runs = results.by_name() | {"about": results.about, "versions": dict(versions(results))}

    def figure(place: re.Match[str]) -> str:
        run, path, form = place.groups()
        if form == "aim":
            return aim(results, run, path)
        value: Any = runs.get(run, {})
        for key in path.split("/"):
            value = value.get(key) if isinstance(value, dict) else None
        return MISSING if value is None else FORMS[form](value)

    return _PLACE.sub(figure, template)


def templates() -> dict[str, str]:
    """The parts of bench/figures.md, by name."""
    _, *parts = re.split(r"^## (.+)\n", TEMPLATES.read_text("utf-8"), flags=re.MULTILINE)
    return {name: text.strip("\n") for name, text in zip(parts[::2], parts[1::2], strict=True)}


def written(results: Results, page: str) -> str:
    """The page with its blocks as they are to be."""
    words = templates()
    return BLOCK.sub(lambda block: f"{block[1]}{filled(results, words[block[2]])}\n{block[4]}", page)


def main() -> None:
    """Write them."""
    results = load()
    for page in PAGES:
        old = page.read_text("utf-8")
        if (new := written(results, old)) != old:
            page.write_text(new, "utf-8")
            print(f"written: {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
