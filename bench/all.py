"""Every bench in a short version, one after the other: `make bench`. Writes bench/RESULTS.md and bench/results.json.

Each bench runs in a process of its own and ends with one JSON object; `bench/results.py` says what becomes of them. All
are of one commit. A run that was interrupted goes on where it was, if nothing in forge/ has changed, and what failed is
run again. A bench that fails, or whose independent count found a job lost or run twice, is said in the table, and makes
the exit code 1 at the end; one whose figure misses its aim is only said so.

--tiny runs everything with a handful of jobs, to see that it works: the figures mean nothing, and nothing is written
unless --into names a folder. --only NAME (repeatable) runs some, and replaces their figures if the others are of this
commit; if they are not, nothing is written.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import ROOT, facts
from bench.results import Results, here, keep, load, save

TIMEOUT = 900  # seconds a bench may take


class Run(NamedTuple):
    """A bench with its arguments, in the short version and in the tiny one."""

    scenario: str
    short: str
    tiny: str


RUNS = (
    Run("drain", "--both", "--jobs 2000 --rounds 1 --both"),
    Run("drain", "--both --backend sqlite --jobs 200000", "--jobs 2000 --rounds 1 --backend sqlite"),
    Run("lifecycle", "", "--jobs 5000 --rounds 1"),
    Run("lifecycle", "--backend sqlite", "--jobs 5000 --rounds 1 --backend sqlite"),
    Run("tenmillion", "--jobs 1000000", "--jobs 10000"),
    Run("steady", "--minutes 0.5", "--rate 500 --jobs 500 --every 0.5"),
    Run(
        "steady",
        "--retain 20 --rate 10000 --minutes 2.5 --every 6 --drain 120000",
        "--retain 1 --rate 500 --jobs 500 --every 0.2 --drain 2000 --rounds 1",
    ),
    Run("latency", "", "--jobs 30"),
    Run("latency", "--backend sqlite", "--jobs 30 --backend sqlite"),
    Run("mixed", "--rounds 2", "--jobs 300 --rounds 1 --seconds 1.5"),
    Run("mixed", "--rounds 2 --backend sqlite", "--jobs 300 --rounds 1 --seconds 1.5 --backend sqlite"),
    Run("cancel", "", "--jobs 4"),
    Run("failover", "", "--rounds 1 --stale 3"),
    Run("enqueue", "--rounds 4", "--jobs 1000 --rounds 1"),
    Run("enqueue", "--rounds 4 --backend sqlite", "--jobs 1000 --rounds 1 --backend sqlite"),
    Run("storage", "--rounds 2", "--jobs 1000 --rounds 1"),
    Run("fastpath", "", ""),
    Run("xmin", "--rounds 2 --held 30 --stretch 10", "--jobs 5000 --rounds 1 --held 1 --stretch 1"),
    Run("lines", "--jobs 40000", "--jobs 1000 --rounds 1"),
    Run("poison", "--rounds 3", "--jobs 5000 --rounds 1"),
    Run("ledger", "--jobs 30000", "--jobs 2000"),
    Run("ledger", "--jobs 30000 --backend sqlite", "--jobs 2000 --backend sqlite"),
    Run("backlog", "--rounds 1", "--jobs 20000 --rounds 1"),
    Run("memory", "--jobs 300000", "--jobs 5000 --more 2"),
    Run("idle", "", "--seconds 2 --jobs 100"),
    Run("idle", "--backend sqlite", "--seconds 2 --jobs 100 --backend sqlite"),
    Run("idle", "--queues 3000", "--seconds 2 --jobs 100 --queues 50"),
    Run("scaling", "--rounds 1", "--jobs 2000 --rounds 1"),
    Run("polyglot", "", "--jobs 200 --rounds 1"),
    Run("peers", "--rounds 3", "--jobs 2000 --rounds 1 --markdown build/peers.md --plot build/peers.png"),
)

ORDER = {run.scenario: place for place, run in reversed(list(enumerate(RUNS)))}  # where a scenario comes first


def there(run: Run) -> bool:
    """Whether the bench exists in this tree."""
    return (ROOT / "bench" / f"{run.scenario}.py").exists()


def perform(run: Run, arguments: str) -> dict[str, Any]:
    """One bench; what it found, or `error`."""
    words = [sys.executable, str(ROOT / "bench" / f"{run.scenario}.py"), *arguments.split(), "--json"]
    found: dict[str, Any] = {"scenario": run.scenario, "arguments": arguments}
    try:
        done = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=TIMEOUT, check=False)
    except subprocess.TimeoutExpired:
        return found | {"error": f"took more than {TIMEOUT} s"}
    lines = done.stdout.strip().splitlines()
    try:
        found |= json.loads(lines[-1])
    except (IndexError, ValueError):
        return found | {"error": f"exit code {done.returncode} and no figures"}
    if found.get("lost") or found.get("duplicates"):
        found["error"] = f"{found['lost']:,} jobs lost, {found['duplicates']:,} duplicates"
    elif done.returncode:
        found["error"] = f"exit code {done.returncode}"
    return found


def progress(done: int, total: int, began: float, title: str) -> None:
    """A line for whoever watches: which bench comes, how long it has been, and about how long it will be."""
    minutes = (time.perf_counter() - began) / 60
    left = f", about {minutes / done * (total - done):.0f} to go" if done else ""
    print(f"\n[{done + 1}/{total}] {title}   ({minutes:.0f} minutes so far{left})", file=sys.stderr, flush=True)


def is_of_another(path: Path) -> bool:
    """Whether the file has figures, but not of this commit."""
    old = load(path)
    return bool(old.runs) and old.about["commit"] != facts()["commit"]


def gone_on(into: Path | None, runs: Sequence[Run], commit: str | None, *, only: bool) -> Results:
    """What an interrupted run of this commit has found already. One that had been complete is begun anew; with --only
    the others' figures stay, and what is asked for is run."""
    if into is None:
        return Results(here(), [])
    kept = keep(into / "results.json", commit)
    asked = {(run.scenario, run.short) for run in runs}
    had = [found for found in kept.runs if (found["scenario"], found["arguments"]) in asked]
    if only:
        return Results(kept.about, [found for found in kept.runs if found not in had])
    return Results(here(), []) if len(had) == len(runs) else Results(kept.about, had)


def main() -> int:
    """All of it: about half an hour, or two minutes with --tiny."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="only to see that everything runs")
    parser.add_argument("--only", action="append", choices=sorted({run.scenario for run in RUNS}), help="run only this")
    parser.add_argument("--into", type=Path, help="the folder of RESULTS.md and results.json (bench)")
    args = parser.parse_args()
    into = args.into or (None if args.tiny else ROOT / "bench")
    runs = [run for run in RUNS if there(run) and (not args.only or run.scenario in args.only)]
    if args.only and into is not None and is_of_another(into / "results.json"):
        print("results.json is of another commit: nothing is written", file=sys.stderr, flush=True)
        into = None
    results = gone_on(into, runs, facts()["commit"], only=bool(args.only))
    had = {(found["scenario"], found["arguments"]) for found in results.runs}
    todo = [run for run in runs if (run.scenario, run.short) not in had]
    if had and not args.only:
        print(f"going on: {len(had)} benches of this commit have been run", file=sys.stderr, flush=True)
    began, before, failed = time.perf_counter(), float(results.about["minutes"]), list[str]()
    for number, run in enumerate(todo):
        arguments = run.tiny if args.tiny else run.short
        title = f"{run.scenario} {arguments}".strip()
        progress(number, len(todo), began, title)
        found = perform(run, arguments)
        if "error" not in found and found["commit"] != results.about["commit"]:
            found["error"] = f"this was commit {found['commit']}, the others were {results.about['commit']}"
        results.runs.append(found)
        if "error" in found:
            failed.append(title)
            print(f"  FAILED: {found['error']}", file=sys.stderr, flush=True)
        results.about["minutes"] = round(before + (time.perf_counter() - began) / 60, 1)
        if into is not None:  # after each: an interrupted run goes on where it was
            results.runs.sort(key=lambda each: ORDER[each["scenario"]])
            save(into, results)
    print(f"\n{len(todo) - len(failed)} of {len(todo)} benches ran well", file=sys.stderr)
    for title in failed:
        print(f"  failed: {title}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
