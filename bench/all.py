"""Every bench in a short version, one after the other: `make bench`. Writes bench/RESULTS.md and bench/results.json.

Each bench runs in a process of its own and ends with one JSON object; results.json has them all, a line each, with
`scenario` and `arguments` added. A bench that fails, or whose independent count found a job lost or run twice, is said
in the table, and makes the exit code 1 at the end; one whose figure misses its aim is only said so.

--tiny runs everything with a handful of jobs, to see that it works: the figures mean nothing, and nothing is written
unless --into names a folder. --only NAME (repeatable) runs some.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import ROOT, facts

TIMEOUT = 3600  # seconds a bench may take


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
    Run("mixed", "", "--jobs 300 --rounds 1 --seconds 1.5"),
    Run("mixed", "--backend sqlite", "--jobs 300 --rounds 1 --seconds 1.5 --backend sqlite"),
    Run("cancel", "", "--jobs 4"),
    Run("failover", "", "--rounds 1 --stale 3"),
    Run("enqueue", "--rounds 4", "--jobs 1000 --rounds 1"),
    Run("enqueue", "--rounds 4 --backend sqlite", "--jobs 1000 --rounds 1 --backend sqlite"),
    Run("storage", "--rounds 4", "--jobs 1000 --rounds 1"),
    Run("fastpath", "", ""),
    Run("xmin", "", "--jobs 5000 --rounds 1 --held 1 --stretch 1"),
    Run("lines", "--jobs 40000", "--jobs 1000 --rounds 1"),
    Run("poison", "", "--jobs 5000 --rounds 1"),
    Run("ledger", "--jobs 30000", "--jobs 2000"),
    Run("ledger", "--jobs 30000 --backend sqlite", "--jobs 2000 --backend sqlite"),
    Run("backlog", "--rounds 1", "--jobs 20000 --rounds 1"),
    Run("memory", "--jobs 300000", "--jobs 5000 --more 2"),
    Run("idle", "", "--seconds 2 --jobs 100"),
    Run("idle", "--backend sqlite", "--seconds 2 --jobs 100 --backend sqlite"),
    Run("scaling", "--rounds 1", "--jobs 2000 --rounds 1"),
    Run("polyglot", "", "--jobs 200 --rounds 1"),
    Run("peers", "--rounds 4", "--jobs 2000 --rounds 1"),
)

# (scenario, backend, key, least or most, how much): what the project aims at.
AIMS = (
    ("drain", "postgres", "ratio_to_raw", "≥", 0.75),
    ("drain", "sqlite", "ratio_to_raw", "≥", 0.5),
    ("drain", "postgres", "ratio_native", "≥", 1.3),
    ("lifecycle", "postgres", "ratio_to_raw", "≥", 0.6),
    ("xmin", "postgres", "ratio", "≥", 0.9),
    ("xmin", "postgres", "ratio_busy", "≥", 0.9),
    ("steady", "postgres", "ratio_with_pruning", "≥", 0.9),
    ("mixed", "postgres", "late_while_idle", "≤", 0),
    ("mixed", "postgres", "long_late_while_idle", "≤", 0),
    ("mixed", "sqlite", "late_while_idle", "≤", 0),
    ("cancel", "postgres", "p50_ms", "≤", 1000),
    ("failover", "postgres", "shares_s", "≤", 10),
    ("backlog", "postgres", "ratio", "≤", 1.3),
    ("lines", "postgres", "partition_ratio", "≥", 0.5),
    ("lines", "postgres", "keys_ratio", "≥", 0.35),
    ("lines", "postgres", "one_key_ratio", "≥", 0.02),
    ("poison", "postgres", "ratio_poisoned", "≥", 0.9),
    ("memory", "postgres", "worker_mb", "≤", 8),
    ("memory", "postgres", "master_mb", "≤", 60),
    ("peers", "postgres", "ratio_to_best_peer", "≥", 2.5),
    ("peers", "postgres", "p50_ratio", "≤", 0.6),
    ("peers", "postgres", "p99_ratio", "≤", 0.75),
)

HEAD = ("jobs", "jobs_per_s", "lost", "duplicates")  # in the first table
ABOUT = ("scenario", "arguments", "error", "backend", "cores", "versions", "commit")  # in no table of their own


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


def machine() -> dict[str, str]:
    """Where this was."""
    cpu = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": str(facts()["commit"]),
        "cores": str(os.cpu_count()),
        "processor": cpu[0].partition(":")[2].strip() if cpu else platform.processor() or "unknown",
        "memory": f"{memory / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
    }


def shown(value: Any) -> str:
    """A figure for people."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}"


def flat(found: dict[str, Any], before: str = "") -> list[tuple[str, str]]:
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


def aims(results: Sequence[dict[str, Any]]) -> list[list[str]]:
    """Rows: what was aimed at, and what was found."""
    rows = []
    for scenario, backend, key, way, bound in AIMS:
        for found in results:
            if (found["scenario"], found.get("backend", backend)) == (scenario, backend) and key in found:
                met = found[key] >= bound if way == "≥" else found[key] <= bound
                rows.append(
                    [scenario, backend, f"`{key}`", shown(found[key]), f"{way} {bound}", "yes" if met else "no"]
                )
    return rows


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table."""
    return ["", f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}", *(f"| {' | '.join(row)} |" for row in rows), ""]


def report(results: Sequence[dict[str, Any]], seconds: float) -> str:
    """RESULTS.md."""
    versions: dict[str, str] = {}
    for found in results:
        versions |= found.get("versions", {})
    lines = [
        "# Results of `make bench`",
        "",
        "Written by `bench/all.py`; each bench's docstring says what its keys mean.",
    ]
    lines += ["Short runs on one machine: compare the ratios, which were taken in turns, rather than the rates."]
    about = machine() | {"took": f"{seconds / 60:.0f} minutes"}
    about["versions"] = ", ".join(f"{name} {version}" for name, version in versions.items())
    lines += markdown(("", ""), list(about.items()))
    rows = []
    for found in results:
        name = f"{found['scenario']} {found['arguments']}".strip()
        rows.append([name, *(shown(found.get(key, "")) for key in HEAD), found.get("error", "ok")])
    lines += markdown(("bench", *HEAD, ""), rows)
    if met := aims(results):
        lines += ["## Aims", *markdown(("bench", "database", "key", "found", "aim", "met"), met)]
    for found in results:
        lines += [f"## {found['scenario']} {found['arguments']}".rstrip()]
        if "error" in found:
            lines += ["", f"FAILED: {found['error']}"]
        rest = {key: value for key, value in found.items() if key not in ABOUT}
        lines += markdown(("key", "value"), [[f"`{key}`", value] for key, value in flat(rest)])
    return "\n".join(lines).replace("\n\n\n", "\n\n").rstrip() + "\n"


def main() -> int:
    """All of it: about half an hour, or a minute and a half with --tiny."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="only to see that everything runs")
    parser.add_argument("--only", action="append", choices=sorted({run.scenario for run in RUNS}), help="run only this")
    parser.add_argument("--into", type=Path, help="the folder of RESULTS.md and results.json (bench)")
    args = parser.parse_args()
    into = args.into or (None if args.tiny else ROOT / "bench")
    began, results = time.perf_counter(), []
    runs = [run for run in RUNS if there(run) and (not args.only or run.scenario in args.only)]
    for number, run in enumerate(runs, 1):
        arguments = run.tiny if args.tiny else run.short
        print(f"\n[{number}/{len(runs)}] {run.scenario} {arguments}", file=sys.stderr, flush=True)
        results.append(perform(run, arguments))
        if "error" in results[-1]:
            print(f"  FAILED: {results[-1]['error']}", file=sys.stderr, flush=True)
        if into is not None:  # after each: an interrupted hour is not lost
            into.mkdir(parents=True, exist_ok=True)
            (into / "results.json").write_text("".join(json.dumps(found) + "\n" for found in results))
            (into / "RESULTS.md").write_text(report(results, time.perf_counter() - began))
    failed = [f"{found['scenario']} {found['arguments']}".strip() for found in results if "error" in found]
    print(f"\n{len(results) - len(failed)} of {len(results)} benches ran well", file=sys.stderr)
    for name in failed:
        print(f"  failed: {name}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
