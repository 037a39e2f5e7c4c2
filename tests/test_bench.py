"""The benches run, say what they promise to, and notice a job that is lost or runs twice. Nobody looks at figures."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench import all as bench_all
from bench import results as bench_results
from bench.common import finish, options
from bench.ground import ground
from bench.pod import new_jobs, project
from bench.results import Results

pytestmark = pytest.mark.impl_free

ROOT = Path(__file__).resolve().parents[1]
PROMISED = {"jobs", "seconds", "jobs_per_s", "lost", "duplicates", "backend", "impl", "cores", "versions", "commit"}


def words(scenario: str, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "bench" / f"{scenario}.py"), *arguments, "--json"]


def run(scenario: str, arguments: str) -> dict[str, Any]:
    """The JSON on the last line of a bench that ended well."""
    done = subprocess.run(words(scenario, *arguments.split()), capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    ("scenario", "arguments", "keys"),
    [
        ("drain", "--jobs 2000 --rounds 1", {"ratio_to_raw", "wal_bytes_per_job", "commits_per_job"}),
        ("drain", "--jobs 2000 --rounds 1 --typed --impl py --backend sqlite", {"ratio_to_raw"}),
        ("lifecycle", "--jobs 6000 --rounds 1 --backend sqlite", {"ratio_to_raw", "produced_per_s"}),
        (
            "latency",
            "--jobs 20 --backend sqlite",
            {"p50_ms", "p95_ms", "p99_ms", "finalized_p50_ms", "finalized_p99_ms"},
        ),
        ("steady", "--jobs 300 --rate 500 --every 0.2 --backend sqlite", {"p50_ms", "p99_ms", "samples", "table_mb"}),
        (
            "steady",
            "--retain 1 --rate 500 --jobs 500 --every 0.2 --drain 2000 --rounds 1",
            {"ratio_with_pruning", "dead_tuples_flat", "pruned_per_s", "most_prunable", "drain_pruned_per_s"},
        ),
        ("mixed", "--jobs 300 --rounds 1 --seconds 0.5 --backend sqlite", {"late_while_idle", "long_late_while_idle"}),
        ("cancel", "--jobs 2 --backend sqlite", {"p50_ms", "p99_ms", "stored_p50_ms"}),
        ("failover", "--rounds 1 --stale 3", {"reaped_s", "rerun_s", "shares_s"}),
        ("xmin", "--jobs 2000 --rounds 1 --held 0.5 --stretch 0.5", {"ratio", "ratio_busy", "busy_jobs_per_s"}),
        ("lines", "--jobs 1000 --rounds 1 --backend sqlite", {"keys_ratio", "partition_ratio", "over_limit"}),
        ("backlog", "--jobs 20000 --rounds 1 --backend sqlite", {"ratio", "claim_ms"}),
        ("ledger", "--jobs 3000", {"phantom", "stuck", "again", "blamed"}),
        ("poison", "--jobs 5000 --rounds 1 --backend sqlite", {"ratio_poisoned", "crashes", "blamed"}),
        ("enqueue", "--jobs 1000 --rounds 1 --backend sqlite", {"ratio_copy", "ratio_single"}),
        ("polyglot", "--jobs 100 --rounds 1 --backend sqlite", {"ratio_to_python"}),
    ],
)
def test_a_bench_ends_with_the_figures_it_promises(scenario: str, arguments: str, keys: set[str]) -> None:
    found = run(scenario, arguments)
    assert set(found) >= PROMISED | keys
    assert (found["lost"], found["duplicates"]) == (0, 0)
    assert found["jobs"] > 0
    assert found["impl"] == ("py" if "--impl py" in arguments else "c")
    assert found["backend"] == ("sqlite" if "sqlite" in arguments else "postgres")
    assert ("postgresql" in found["versions"]) == (found["backend"] == "postgres")


def test_ten_million_go_on_where_they_were_interrupted(tmp_path: Path) -> None:
    command = words(
        "tenmillion", "--jobs", "30000", "--ahead", "5000", "--backend", "sqlite", "--folder", str(tmp_path)
    )
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        board, end = tmp_path / "ran", time.monotonic() + 60
        while not (board.exists() and b"\1" in board.read_bytes()):
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 130
    assert 0 < board.read_bytes().count(1) < 30_000
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["jobs"], found["runs"], found["lost"], found["duplicates"]) == (30_000, 2, 0, 0)


def test_a_job_that_never_ran_or_ran_twice_is_noticed() -> None:
    with ground("sqlite") as db, project(db, jobs=10) as made:
        db.fill(new_jobs(0, 10))
        assert made.verdict(10) == (10, 0)
        raw = db.raw()
        assert raw.drain(1000) == 10  # in history, but run by nobody
        raw.close()
        assert made.verdict(10) == (10, 0)
        (made.folder / "ran").write_bytes(bytes([1, 1, 1, 0, 1, 1, 3, 1, 1, 1]))
        assert made.verdict(10) == (1, 2)
        (made.folder / "ran").write_bytes(bytes([1] * 10))
        assert made.verdict(10) == (0, 0)


def test_a_lost_job_makes_a_bench_fail(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the test run's own handlers stay
    monkeypatch.setattr(sys, "argv", ["bench", "--json"])
    args = options("", jobs=10).parse_args()
    with pytest.raises(SystemExit, match="1"):
        finish(args, 0.0, 10, jobs_per_s=5.0, lost=1, duplicates=0)
    assert json.loads(capsys.readouterr().out)["lost"] == 1


def test_a_bench_that_fails_is_said_in_the_report() -> None:
    found = bench_all.perform(bench_all.Run("drain", "", ""), "--jobs many")
    assert found["error"] == "exit code 2 and no figures"
    good = {"scenario": "drain", "arguments": "", "backend": "postgres", "jobs": 5, "ratio_to_raw": 0.5, "lost": 0}
    text = bench_results.report(Results(bench_results.here(), [found, good]))
    assert "FAILED: exit code 2 and no figures" in text
    assert "| drain | `ratio_to_raw` | 0.5 | ≥ 0.75 | no |" in text


def test_an_interrupted_run_goes_on_and_another_commit_begins_anew(tmp_path: Path) -> None:
    runs = [bench_all.Run("drain", "", ""), bench_all.Run("drain", "--backend sqlite", "")]
    lines = [{"scenario": "drain", "arguments": run.short, "jobs": 1} for run in runs]
    about = bench_results.here() | {"commit": "abc"}

    def goes_on(lines: list[dict[str, Any]], *, commit: str = "abc", only: bool = False) -> list[dict[str, Any]]:
        bench_results.save(tmp_path, Results(about, lines))
        return bench_all.gone_on(tmp_path, runs[:1] if only else runs, commit, only=only).runs

    assert goes_on(lines[:1]) == lines[:1]
    assert goes_on([lines[0], lines[1] | {"error": "no"}]) == lines[:1], "what failed is run again"
    assert goes_on(lines) == [], "it was complete"
    assert goes_on(lines, only=True) == lines[1:], "the others' figures stay"
    assert goes_on(lines[:1], commit="def") == []


def test_every_bench_is_run_by_make_bench() -> None:
    files = [path for path in (ROOT / "bench").glob("*.py") if path.stem != "common"]
    scenarios = {path.stem for path in files if "finish(" in path.read_text()}
    assert {"drain", "storage"} <= scenarios <= {run.scenario for run in bench_all.RUNS}
