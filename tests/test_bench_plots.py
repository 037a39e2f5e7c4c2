"""The plots: what is read from the benches' lines, and that there is a file for what there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bench import plots

pytestmark = pytest.mark.impl_free

LINES: list[dict[str, Any]] = [
    {"scenario": "storage", "jobs_per_s_batch_100": 29, "jobs_per_s_batch_1000": 41, "raw_jobs_per_s_batch_100": 25},
    {"scenario": "scaling", "noop_by_workers": {"1": 10, "2": 18, "4": 19}, "noop_by_pods": {"1": 18, "2": 20}},
    {"scenario": "latency", "p50_ms": 2.2, "p95_ms": 4.0, "p99_ms": 7.0, "finalized_p50_ms": 3.1},
    {"scenario": "backlog", "claim_ms": {"10000": 1.0, "5000000": 1.1}},
    {"scenario": "xmin", "jobs_per_s": 50_000, "pinned_jobs_per_s": 49_000, "ratio": 0.98},
]


def text() -> str:
    return "  some words\n" + "\n".join(json.dumps(line) for line in LINES)


def test_figures_are_found_by_scenario() -> None:
    results = plots.read(text())
    batches = {"forge, PostgreSQL": {100.0: 29, 1000.0: 41}, "by hand, PostgreSQL": {100.0: 25}}
    assert plots.by_batch(results) == batches
    assert plots.by_number(results["scaling"], "noop_by_pods", "noop_by_workers")["noop_by_pods"] == {1.0: 18, 2.0: 20}
    waits = {"enqueue to start": {50.0: 2.2, 95.0: 4.0, 99.0: 7.0}, "enqueue to finalized": {50.0: 3.1}}
    assert plots.percentiles(results["latency"]) == waits
    assert plots.pinned(results["xmin"]) == {"no snapshot held": 50_000, "snapshot held": 49_000}


def test_one_object_by_name_is_read_as_well_as_lines() -> None:
    assert plots.read(json.dumps({line["scenario"]: line for line in LINES})) == plots.read(text())
    assert plots.read(json.dumps({"about": {}, "results": LINES})) == plots.read(text())


def test_a_line_that_says_no_scenario_is_refused() -> None:
    with pytest.raises(SystemExit, match="which scenario"):
        plots.read('{"jobs": 1}\n{"jobs": 2}')


def test_a_plot_is_written_if_there_is_something_in_it(tmp_path: Path) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    assert [path.name for path in plots.draw(plots.read(text()), whole)] == [
        "throughput.png",
        "latency.png",
        "claim.png",
    ]
    assert all(path.stat().st_size > 0 for path in whole.iterdir())
    assert [path.name for path in plots.draw({"backlog": LINES[3]}, part)] == ["claim.png"]
