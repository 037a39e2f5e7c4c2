"""What `make bench` has found: bench/results.json, and the page that it makes, bench/RESULTS.md.

The file is one JSON object: `about` says where and when (commit, cores, date, processor, memory, system, minutes), and
`results` has an object for each bench that was run, with its `scenario` and `arguments`, one to a line. All are of one
commit: `keep` lets nothing else stay.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.common import ROOT, facts

FILE = ROOT / "bench" / "results.json"
Figures = Mapping[str, Any]  # what one bench found

# (which bench, key, least or most, how much): what the project aims at.
AIMS = (
    ("drain", "ratio_to_raw", "≥", 0.75),
    ("drain:sqlite", "ratio_to_raw", "≥", 0.5),
    ("drain", "ratio_native", "≥", 1.3),
    ("lifecycle", "ratio_to_raw", "≥", 0.6),
    ("enqueue", "ratio_copy", "≥", 0.6),
    ("enqueue", "ratio_single", "≥", 0.8),
    ("xmin", "ratio", "≥", 0.9),
    ("xmin", "ratio_busy", "≥", 0.9),
    ("steady:retain", "ratio_with_pruning", "≥", 0.9),
    ("mixed", "late_while_idle", "≤", 0),
    ("mixed", "long_late_while_idle", "≤", 0),
    ("mixed:sqlite", "late_while_idle", "≤", 0),
    ("cancel", "p50_ms", "≤", 1000),
    ("failover", "shares_s", "≤", 10),
    ("backlog", "ratio", "≤", 1.3),
    ("poison", "ratio_poisoned", "≥", 0.9),
    ("ledger", "stuck", "≤", 0),
    ("memory", "worker_mb", "≤", 8),
    ("memory", "master_mb", "≤", 60),
    ("idle", "cpu_percent", "≤", 1),
    ("idle", "statements_per_s", "≤", 3),
    ("idle:queues", "cpu_percent", "≤", 5),
    ("peers", "ratio_to_best_peer", "≥", 2.5),
    ("peers", "p50_ratio", "≤", 0.6),
    ("peers", "p99_ratio", "≤", 0.75),
)

HEAD = ("jobs", "jobs_per_s", "lost", "duplicates")  # in the first table
ABOUT = ("scenario", "arguments", "error", "backend", "cores", "versions", "commit")  # in no table of their own


class Results(NamedTuple):
    """The file, read."""

    about: dict[str, Any]
    runs: list[dict[str, Any]]

    def by_name(self) -> dict[str, dict[str, Any]]:
        """What was found, by `name`."""
        return {name(found): found for found in self.runs}


def name(found: Figures) -> str:
    """Of a run of a bench, told apart from others of the same: `drain`, `drain:sqlite`, `steady:retain`."""
    words = str(found["arguments"])
    marks = [mark for mark in ("retain", "queues") if f"--{mark} " in words]
    if "--backend sqlite" in words:
        marks.append("sqlite")
    return ":".join([found["scenario"], *marks])


def here() -> dict[str, Any]:
    """This machine and this commit, now."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "commit": facts()["commit"],
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cores": os.cpu_count(),
        "processor": cpu[0].partition(":")[2].strip() if cpu else platform.processor() or "unknown",
        "memory": f"{memory / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "minutes": 0.0,
    }


def load(path: Path = FILE) -> Results:
    """The file; nothing at all if there is none."""
    if not path.exists():
        return Results({}, [])
    whole = json.loads(path.read_text())
    return Results(whole["about"], whole["results"])


def keep(path: Path, commit: str | None) -> Results:
    """What of the file was found at this commit without an error; a new beginning if it is of another one."""
    old = load(path)
    if commit is None or old.about.get("commit") != commit:
        return Results(here(), [])
    return Results(old.about, [found for found in old.runs if "error" not in found])


def save(folder: Path, results: Results) -> None:
    """results.json and RESULTS.md."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(json.dumps(found) for found in results.runs)
    text = f'{{"about": {json.dumps(results.about)},\n"results": [\n{lines}\n]}}\n'
    part = folder / "results.json.part"
    part.write_text(text)
    part.replace(folder / "results.json")  # an interrupted write leaves the old one
    (folder / "RESULTS.md").write_text(report(results))


def aims(results: Results) -> dict[tuple[str, str], tuple[str, bool | None]]:
    """By bench and key: what is aimed at, and whether it was met (None: not measured)."""
    found = results.by_name()
    met: dict[tuple[str, str], tuple[str, bool | None]] = {}
    for bench, key, way, bound in AIMS:
        value = found.get(bench, {}).get(key)
        met[bench, key] = f"{way} {bound}", None if value is None else value >= bound if way == "≥" else value <= bound
    return met


def shown(value: Any) -> str:
    """A figure for people."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}"


def flat(found: Figures, before: str = "") -> list[tuple[str, str]]:
    """Figures line by line; tables within tables by dotted names, lists of records left out (results.json has them)."""
    rows: list[tuple[str, str]] = []
    for key, value in found.items():
        if isinstance(value, dict):
            rows += flat(value, f"{before}{key}.")
        elif not isinstance(value, list):
            rows.append((before + key, shown(value)))
        elif not any(isinstance(item, (dict, list)) for item in value):
            rows.append((before + key, ", ".join(map(shown, value))))
    return rows


def versions(results: Results) -> dict[str, str]:
    """Of everything that took part."""
    together: dict[str, str] = {}
    for found in results.runs:
        together |= found.get("versions", {})
    return together


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table."""
    return ["", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def report(results: Results) -> str:
    """RESULTS.md."""
    lines = ["# Results of `make bench`", ""]
    lines += [
        "Written by `bench/all.py` from `results.json`; each bench's docstring says what its keys mean. Short runs on"
    ]
    lines += ["one machine: compare the ratios, which were taken in turns, rather than the rates."]
    about = {key: str(value) for key, value in results.about.items()}
    about["versions"] = ", ".join(f"{each} {version}" for each, version in versions(results).items())
    lines += markdown(("", ""), list(about.items()))
    rows = []
    for found in results.runs:
        title = f"{found['scenario']} {found['arguments']}".strip()
        rows.append([title, *(shown(found.get(key, "")) for key in HEAD), found.get("error", "ok")])
    lines += markdown(("bench", *HEAD, ""), rows)
    by_name = results.by_name()
    met = [
        [bench, f"`{key}`", shown(by_name[bench][key]), aim, "yes" if is_met else "no"]
        for (bench, key), (aim, is_met) in aims(results).items()
        if is_met is not None
    ]
    if met:
        lines += ["## Aims", *markdown(("bench", "key", "found", "aim", "met"), met)]
    for found in results.runs:
        lines += [f"## {found['scenario']} {found['arguments']}".rstrip()]
        if "error" in found:
            lines += ["", f"FAILED: {found['error']}"]
        rest = {key: value for key, value in found.items() if key not in ABOUT}
        lines += markdown(("key", "value"), [[f"`{key}`", value] for key, value in flat(rest)])
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"
