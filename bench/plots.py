"""The plots of docs/performance.md, from what the benches said: python bench/plots.py [results] [--out docs/img]

`results` is bench/results.json, or holds the JSON lines of benches, each with its scenario's name under `scenario` (or
`bench`), or is one JSON object of them by name; `-` reads standard input. What a plot needs and the results lack is
left out of it, and a plot with nothing in it is not written. `bench/peers.py` draws its own.

throughput.png   storage's jobs_per_s_batch_N and *_jobs_per_s_batch_N; scaling's noop_by_workers, … ({"1": rate})
latency.png      latency's p50_ms, p95_ms, p99_ms, and others with a name before it: finalized_p50_ms
claim.png        backlog's `claim_ms` ({"10000": ms}); xmin's jobs_per_s and pinned_jobs_per_s, or its `claim_ms`
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
Figures = Mapping[str, Any]  # one bench's JSON object
Results = Mapping[str, Figures]  # by scenario
Series = dict[str, dict[float, float]]  # by name: y by x
Words = tuple[str, str, str]  # title, x, y
COLOURS = ("#c2410c", "#475569", "#0f766e", "#a16207", "#7c3aed", "#a8a29e")


SCALES = {  # scaling's keys: (what the axis says, the title)
    "noop_by_workers": ("workers", "drain, by workers"),
    "nap_by_workers": ("workers", "the same, jobs that wait 2 ms"),
    "noop_by_pods": ("pods", "drain, by pods"),
}


def read(text: str) -> Results:
    """By scenario, on SQLite as `latency:sqlite`; of several runs of one, the last. Lines that are no JSON objects are
    what a bench says besides."""
    try:
        whole = json.loads(text)
    except ValueError:
        whole = None
    if isinstance(whole, dict) and "results" in whole:  # bench/results.json
        text = "\n".join(json.dumps(figures) for figures in whole["results"])
    elif isinstance(whole, dict) and all(isinstance(value, dict) for value in whole.values()):
        return whole
    found: dict[str, Figures] = {}
    for line in text.splitlines():
        if line.startswith("{"):
            figures = json.loads(line)
            name = figures.get("scenario", figures.get("bench"))
            if name is None:
                raise SystemExit(f"a line does not say which scenario it is of: {line[:80]}")
            found[f"{name}:sqlite" if figures.get("backend") == "sqlite" else name] = figures
    return found


def by_batch(results: Results) -> Series:
    """Rates against the batch size, of everything that was measured so."""
    series: Series = {}
    for name, value in results.get("storage", {}).items():
        if match := re.fullmatch(r"(?:(\w+)_)?jobs_per_s_batch_(\d+)", name):
            label = {None: "forge, PostgreSQL", "raw": "by hand, PostgreSQL", "sqlite": "forge, SQLite"}.get(match[1])
            series.setdefault(label or match[1], {})[float(match[2])] = value
    return series


def by_number(figures: Figures, *keys: str) -> Series:
    """The figures that are mappings from a number to a value."""
    return {key: {float(x): y for x, y in figures[key].items()} for key in keys if key in figures}


def percentiles(figures: Figures) -> Series:
    """Milliseconds by percentile, for each moment that was measured."""
    series: Series = {}
    for name, value in figures.items():
        if match := re.fullmatch(r"(?:(\w+)_)?p(\d+)_ms", name):
            series.setdefault(f"enqueue to {match[1] or 'start'}", {})[float(match[2])] = value
    return series


def pinned(figures: Figures) -> dict[str, float]:
    """What a held snapshot does to a drain, or else to a claim."""
    if "pinned_jobs_per_s" in figures:
        return {"no snapshot held": figures["jobs_per_s"], "snapshot held": figures["pinned_jobs_per_s"]}
    return {str(name): float(value) for name, value in figures.get("claim_ms", {}).items()}


def lines(axis: Any, series: Series, words: Words, *, log: bool = False) -> None:
    """A line a series, through its points."""
    for (name, points), colour in zip(series.items(), COLOURS, strict=False):
        at = sorted(points)
        axis.plot(at, [points[k] for k in at], marker="o", label=name, color=colour)
    if log:
        axis.set_xscale("log")
    ticks = sorted({k for points in series.values() for k in points})
    axis.set_xticks(ticks, [f"{k:,.0f}" for k in ticks], fontsize=8)
    axis.minorticks_off()
    axis.set_ylim(0, 1.1 * max(y for points in series.values() for y in points.values()))
    _dress(axis, *words)
    if len(series) > 1:
        axis.legend(fontsize=8, frameon=False)


def bars(axis: Any, values: Mapping[str, float], words: Words) -> None:
    """A bar a name."""
    drawn = axis.bar(list(values), list(values.values()), color=COLOURS[: len(values)], width=0.5)
    axis.bar_label(drawn, fmt="{:,.3g}" if max(values.values()) < 100 else "{:,.0f}", fontsize=8)
    _dress(axis, *words)


def _dress(axis: Any, title: str, x: str, y: str) -> None:
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(x, fontsize=9)
    axis.set_ylabel(y, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    axis.tick_params(labelsize=8)
    axis.yaxis.set_major_formatter("{x:,g}")


Panel = Callable[[Any], None]


def panels(results: Results) -> dict[str, list[Panel]]:
    """By file name, what there is to draw."""
    scaling, latency = results.get("scaling", {}), results.get("latency", {})
    backlog, xmin = results.get("backlog", {}), results.get("xmin", {})
    found: dict[str, list[Panel]] = {"throughput.png": [], "latency.png": [], "claim.png": []}
    if series := by_batch(results):
        words = ("claim and finalize", "jobs a batch", "jobs/s")
        found["throughput.png"].append(partial(lines, series=series, words=words, log=True))
    for key, (what, title) in SCALES.items():
        if series := by_number(scaling, key):
            found["throughput.png"].append(partial(lines, series=series, words=(title, what, "jobs/s")))
    if series := percentiles(latency):
        words = ("an idle pod at 50 jobs/s", "percentile", "milliseconds")
        found["latency.png"].append(partial(lines, series=series, words=words))
    if series := by_number(backlog, "claim_ms"):
        words = ("a claim, by jobs waiting", "jobs waiting", "milliseconds")
        found["claim.png"].append(partial(lines, series=series, words=words, log=True))
    if values := pinned(xmin):
        unit = "jobs/s" if "pinned_jobs_per_s" in xmin else "milliseconds a claim"
        found["claim.png"].append(partial(bars, values=values, words=("under a snapshot held open", "", unit)))
    return {name: drawn for name, drawn in found.items() if drawn}


def draw(results: Results, out: Path) -> list[Path]:
    """Write the plots; those that were."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    out.mkdir(parents=True, exist_ok=True)
    written = []
    for name, drawn in panels(results).items():
        figure, axes = plt.subplots(1, len(drawn), figsize=(4.6 * len(drawn), 3.4), squeeze=False)
        for axis, panel in zip(axes[0], drawn, strict=True):
            panel(axis)
        figure.tight_layout()
        figure.savefig(out / name, dpi=130)
        plt.close(figure)
        written.append(out / name)
    return written


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", default=str(ROOT / "bench/results.json"), help="a file, or -")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/img", help="folder of the plots (docs/img)")
    args = parser.parse_args()
    text = sys.stdin.read() if args.results == "-" else Path(args.results).read_text()
    for path in draw(read(text), args.out):
        print(f"written: {path}")


if __name__ == "__main__":
    main()
