"""The results for people: a Markdown table and a plot."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.common import say
from bench.rivals.contenders import FORGE, Contender

COLUMNS = (  # heading, key of a contender's figures, how it is printed
    ("drain jobs/s", "drain_per_s", "{:,}"),
    ("steady", "steady_per_s", "{:,}"),
    ("jobs", "drain_jobs", "{:,}"),
    ("bulk enqueue/s", "bulk_per_s", "{:,}"),
    ("single enqueue/s", "single_per_s", "{:,}"),
    ("p50 ms", "p50_ms", "{:.2f}"),
    ("p99 ms", "p99_ms", "{:.2f}"),
    ("lost", "lost", "{}"),
    ("twice", "duplicates", "{}"),
)
RATIOS = (
    ("ratio_to_best_peer", "drain, forge over the best peer"),
    ("ratio_steady", "drain between the first and the last tenth, forge over the best peer"),
    ("enqueue_ratio_bulk", "bulk enqueue, forge over the best on PostgreSQL"),
    ("enqueue_ratio_single", "single enqueue, forge over the best on PostgreSQL"),
    ("enqueue_ratio_single_redis", "single enqueue, forge over the best on Redis"),
    ("p50_ratio", "latency p50, forge over the best on PostgreSQL (lower is better)"),
    ("p99_ratio", "latency p99, forge over the best on PostgreSQL (lower is better)"),
    ("p50_ratio_redis", "latency p50, forge over the best on Redis (lower is better)"),
    ("p99_ratio_redis", "latency p99, forge over the best on Redis (lower is better)"),
)


def table(figures: dict[str, Any], contenders: list[Contender]) -> str:
    """Medians of the rounds, the fastest drain first."""
    peers = figures["peers"]
    shown = [column for column in COLUMNS if any(column[1] in peer for peer in peers.values())]
    rows = [["", *(heading for heading, _, _ in shown)], ["---", *("---:" for _ in shown)]]
    for contender in sorted(contenders, key=lambda c: -peers[c.name].get("drain_per_s", 0)):
        found = peers[contender.name]
        cells = [form.format(found[key]) if key in found else "–" for _, key, form in shown]
        rows.append([contender.name if contender.durable else f"{contender.name} (Redis)", *cells])
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append(f"| {' | '.join([row[0].ljust(widths[0]), *cells])} |")
    return "\n".join(lines)


def markdown(path: Path, figures: dict[str, Any], about: dict[str, Any], contenders: list[Contender]) -> None:
    """The whole run on a page."""
    lines = ["# forge and its peers", ""]
    lines += ["Written by `bench/peers.py`, which says how each figure is taken. Medians of interleaved rounds on one"]
    lines += ["machine with the databases on it; PostgreSQL with fsync and synchronous_commit on, Redis without"]
    lines += ["persistence. Differences under 30 % mean little.", "", table(figures, contenders), ""]
    if ratios := [f"| {words} | {figures[key]} |" for key, words in RATIOS if key in figures]:
        lines += ["| median of the rounds' ratios | |", "|---|---:|", *ratios, ""]
    for contender in contenders:
        also = f"; for latency: {contender.latency_setup}" if contender.latency_setup else ""
        lines.append(f"- {contender.name}: {contender.setup}{also}")
    lines += [f"- {name} was left out: {reason}" for name, reason in figures["skipped"].items()]
    lines += [f"- failed: {name}: {reason}" for name, reason in figures["failed"].items()]
    versions = ", ".join(f"{name} {version}" for name, version in sorted(about["versions"].items()))
    lines += ["", f"{datetime.now(UTC):%Y-%m-%d}, {about['cores']} cores, {figures['rounds']} rounds, commit"]
    lines[-1] += f" {about['commit']}, fast path {about['impl']}. {versions}."
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    say(f"\nwritten: {path}")


PANELS = (
    ("drain, jobs/s", ("drain_per_s",)),
    ("bulk enqueue, jobs/s", ("bulk_per_s",)),
    ("single enqueue, jobs/s", ("single_per_s",)),
    ("pickup latency, ms (p50, p99)", ("p50_ms", "p99_ms")),
)


def _colour(name: str, found: dict[str, Any]) -> str:
    return "#c2410c" if name == FORGE.name else "#475569" if found["durable"] else "#a8a29e"


def plot(path: Path, figures: dict[str, Any]) -> None:
    """A panel a measurement, a bar a contender, in the colours of forge, PostgreSQL and Redis."""
    try:
        import matplotlib as mpl
    except ImportError:
        say("no plot: matplotlib is not installed (pip install -e '.[dev]')")
        return
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    peers = figures["peers"]
    panels = [panel for panel in PANELS if any(panel[1][0] in peer for peer in peers.values())]
    figure, axes = plt.subplots(1, len(panels), figsize=(4.2 * len(panels), 3.4), squeeze=False)
    for axis, (title, keys) in zip(axes[0], panels, strict=True):
        least_first = len(keys) == 2
        values = {name: peer[keys[0]] for name, peer in peers.items() if keys[0] in peer}
        names = sorted(values, key=values.__getitem__, reverse=least_first)
        for k, key in enumerate(reversed(keys)):  # p99 first, so that p50 lies on it
            colours = [_colour(name, peers[name]) for name in names]
            fade = 1.0 if k == len(keys) - 1 else 0.35
            bars = axis.barh(names, [peers[name][key] for name in names], color=colours, alpha=fade)
            if key != "p50_ms":
                axis.bar_label(bars, fmt="{:,.0f}" if key.endswith("per_s") else "{:.1f}", padding=3, fontsize=8)
        axis.set_title(title, fontsize=10)
        axis.margins(x=0.22)
        axis.spines[["top", "right"]].set_visible(False)
        axis.tick_params(labelsize=8)
        axis.locator_params(axis="x", nbins=4)
        axis.xaxis.set_major_formatter("{x:,g}")
    words = "orange: forge; dark: on PostgreSQL, every commit on disk; light: on Redis without persistence"
    figure.supxlabel(words, fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    plt.close(figure)
    say(f"written: {path}")
