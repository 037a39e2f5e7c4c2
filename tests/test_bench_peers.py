"""The bench of forge beside its peers: that its checks can fail, and that it runs. The peers themselves are not run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import peers
from bench.rivals import board, environment
from bench.rivals.contenders import FORGE, RIVALS
from bench.rivals.summary import summary

pytestmark = pytest.mark.impl_free


def run_in_child(env: dict[str, str], *jobs: int) -> None:
    """What a worker process does."""
    pid = os.fork()
    if pid == 0:
        os.environ.update(env)
        for job in jobs:
            board.hit(job)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_the_board_tells_lost_jobs_and_those_that_ran_twice(tmp_path: Path) -> None:
    seen = board.Board(tmp_path / "board", 10)
    assert seen.verdict(10) == (10, 0)
    run_in_child(seen.env(), 0, 1, 2, 3, 9)
    run_in_child(seen.env(), 3, 4, 5, 5, 5)
    assert seen.verdict(6) == (0, 3)  # 3 in two processes, 5 three times in one
    assert seen.verdict(10) == (3, 3)  # and 6, 7 and 8 never
    assert seen.ran(3) == 3 and seen.has_run(9) and not seen.has_run(8)
    assert [at > 0 for at in seen.starts(10)] == [True] * 6 + [False] * 3 + [True]
    seen.close()


def drained(rate: float, lost: int = 0, duplicates: int = 0) -> dict[str, Any]:
    return {
        "jobs": 100,
        "seconds": 100 / rate,
        "tail": 0.01,
        "rate": rate,
        "steady": 2 * rate,
        "lost": lost,
        "duplicates": duplicates,
    }


def waited(p50: float, p99: float) -> dict[str, Any]:
    return {"jobs": 10, "seconds": 0.2, "p50": p50, "p99": p99, "lost": 0, "duplicates": 0}


def test_a_ratio_is_the_median_of_the_rounds_over_the_best_peer_of_each() -> None:
    slow, fast, light = RIVALS[0], RIVALS[1], RIVALS[3]
    assert slow.durable and fast.durable and not light.durable
    results = {
        "drain": {
            "forge": [drained(100), drained(300), drained(200)],
            slow.name: [drained(50, lost=2), drained(10), drained(10)],
            fast.name: [drained(40), drained(50, duplicates=1), drained(50)],
        },
        "latency": {
            "forge": [waited(2, 8)],
            slow.name: [waited(4, 10)],
            fast.name: [waited(5, 9)],
            light.name: [waited(1, 16)],
        },
    }
    found = summary(results, [FORGE, slow, fast, light])
    assert found["ratio_to_best_peer"] == 4.0 and found["best_peer"] == fast.name  # of 2, 6 and 4
    assert found["ratio_steady"] == 4.0
    assert (found["jobs"], found["seconds"], found["jobs_per_s"]) == (100, 0.5, 200)
    assert (found["lost"], found["duplicates"]) == (2, 1)
    assert (found["p50_ratio"], found["p99_ratio"]) == (0.5, 0.889)
    assert (found["p50_ratio_redis"], found["p99_ratio_redis"]) == (2.0, 0.5)
    assert (found["p50_ms"], found["p99_ms"]) == (2, 8)
    assert found["peers"][slow.name]["drain_per_s"] == 10 and found["peers"][slow.name]["lost"] == 2


def test_a_peer_that_cannot_be_installed_is_left_out_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_node() -> None:
        raise environment.Unavailable("no node on this machine")

    monkeypatch.setattr(environment, "PARTS", {"node": no_node, "python": lambda: None})
    chosen, skipped = peers.choose(["pgqueuer", "graphile-worker"])
    assert [contender.name for contender in chosen] == ["forge", "pgqueuer"]
    assert skipped == {"graphile-worker": "no node on this machine"}


def test_forge_runs_alone_through_all_of_it(tmp_path: Path) -> None:
    table, plot = tmp_path / "PEERS.md", tmp_path / "peers.png"
    small = ["--peers", "", "--jobs", "300", "--singles", "10", "--paced", "10", "--rounds", "1", "--json"]
    done = subprocess.run(
        [sys.executable, "bench/peers.py", *small, "--markdown", str(table), "--plot", str(plot)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    common = {"jobs", "seconds", "jobs_per_s", "lost", "duplicates", "backend", "impl", "cores", "versions", "commit"}
    assert common | {"p50_ms", "p99_ms", "peers"} <= found.keys()
    assert (found["jobs"], found["lost"], found["duplicates"]) == (300, 0, 0)
    assert "| forge" in table.read_text() and plot.stat().st_size > 0
