"""forge beside its peers: draining a backlog, enqueueing, and pickup latency, in one run on one machine.

Contenders take turns, one at a time, on one PostgreSQL with fsync and synchronous_commit on; who goes first changes
from round to round, and a ratio is the median of the rounds' ratios. Those on Redis have one without persistence. Each
is in its best documented configuration and in an environment of its own under bench/.peers (made at the first run, or
by --setup); what cannot be installed is left out with the reason. All get the same payload of about 100 bytes, and
every handler does the same: it marks its job on a scoreboard in shared memory, with the time. The scoreboard shows
that each job ran exactly once.

drain: the backlog is stored before the workers start. The clock starts with the first job that runs, so that starting
interpreters is not counted for anyone, and stops when the queue itself says that nothing is left to do. The slow ones
get a part of the backlog, shown as jobs. enqueue: the client's own time, one connection; bulk in calls of 1000 jobs.
latency: 50 jobs/s for idle workers that have run some; from the call that enqueues to the handler's first line.

Keys: ratio_to_best_peer (drain, forge over the best of the round, which best_peer names), ratio_steady (the same
between the first and the last tenth of the backlog, without what warms up in the first jobs), enqueue_ratio_single and
enqueue_ratio_bulk (over the best on PostgreSQL), enqueue_ratio_single_redis, p50_ms, p99_ms, p50_ratio and p99_ratio
(forge's over the best on PostgreSQL: lower is better), p50_ratio_redis and p99_ratio_redis, peers (medians of each).
lost and duplicates are those of all contenders together.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import facts, postgres, say
from bench.rivals import environment, measuring, report
from bench.rivals.contenders import FORGE, RIVALS, Contender
from bench.rivals.processes import Stage, redis
from bench.rivals.summary import SCENARIOS, Results, Turns, summary

ROOT = Path(__file__).resolve().parents[1]
RATE = 50.0  # jobs per second offered by `latency`


def arguments() -> argparse.Namespace:
    """The command line."""
    names = ",".join(rival.name for rival in RIVALS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    parser.add_argument("--jobs", type=int, default=50_000, help="the backlog, and jobs of a bulk enqueue")
    parser.add_argument("--rounds", type=int, default=4, help="turns each, interleaved")
    parser.add_argument("--singles", type=int, default=1_500, help="jobs enqueued one by one")
    parser.add_argument("--paced", type=int, default=300, help="jobs of a turn of latency")
    parser.add_argument("--peers", default=names, help=f"which of {names}; '' for forge alone")
    parser.add_argument("--only", choices=SCENARIOS, action="append", help="one scenario (may be given again)")
    parser.add_argument("--setup", action="store_true", help="install the peers and do nothing else")
    parser.add_argument("--markdown", type=Path, help="the table (bench/PEERS.md)", default=ROOT / "bench/PEERS.md")
    parser.add_argument("--plot", type=Path, help="the plot (docs/img/peers.png)", default=ROOT / "docs/img/peers.png")
    args = parser.parse_args()
    args.only = [scenario for scenario in SCENARIOS if scenario in (args.only or SCENARIOS)]  # drain heads the figures
    args.peers = [name for name in args.peers.split(",") if name]
    if unknown := set(args.peers) - {rival.name for rival in RIVALS}:
        parser.error(f"no peer {', '.join(sorted(unknown))}; there are {names}")
    return args


def choose(names: list[str]) -> tuple[list[Contender], dict[str, str]]:
    """Those that can run here, and why the others cannot."""
    chosen, skipped = [FORGE], {}
    for rival in RIVALS:
        if rival.name not in names:
            continue
        if reason := environment.lacking(rival.needs):
            skipped[rival.name] = reason
            say(f"  {rival.name} is left out: {reason}")
        else:
            chosen.append(rival)
    return chosen, skipped


def turn(stage: Stage, scenario: str, args: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """One contender's turn: what to print, and its figures."""
    if scenario == "drain":
        drained = measuring.drain(stage, max(1, args.jobs // stage.contender.share))
        found = {"jobs": drained.jobs, "rate": drained.rate, "seconds": drained.seconds, "tail": drained.tail}
        found |= {"steady": drained.steady, "lost": drained.lost, "duplicates": drained.duplicates}
        return f"{drained.rate:>10,.0f} jobs/s  ({drained.jobs:,} jobs)", found
    if scenario == "latency":
        waited = measuring.latency(stage, args.paced, RATE)
        found = {"jobs": waited.jobs, "seconds": waited.seconds, "p50": waited.p50, "p99": waited.p99}
        found |= {"lost": waited.lost, "duplicates": waited.duplicates}
        return f"{waited.p50:>10.2f} ms p50  {waited.p99:.2f} ms p99", found
    one = measuring.enqueue(stage, args.singles, "single")
    found = {"jobs": one.jobs, "single": one.jobs / one.seconds, "seconds": one.seconds, "lost": one.lost}
    if not stage.contender.bulk:
        return f"{found['single']:>10,.0f} /s one by one", found
    many = measuring.enqueue(stage, args.jobs, "bulk")
    found |= {"bulk": many.jobs / many.seconds, "lost": one.lost + many.lost}
    return f"{found['single']:>10,.0f} /s one by one  {found['bulk']:,.0f} /s in bulk", found


def rounds(stages: list[Stage], scenario: str, args: argparse.Namespace, failed: dict[str, str]) -> Turns:
    """All turns of a scenario. A peer that fails in one is out of it, and `failed` says why; forge may not fail."""
    found: Turns = {stage.contender.name: [] for stage in stages}
    say(f"\n{scenario}: {len(stages)} contenders, {args.rounds} rounds")
    done, total = 0, args.rounds * len(stages)
    for number in range(args.rounds):
        first = number % len(stages)
        for stage in stages[first:] + stages[:first]:
            done += 1
            name = stage.contender.name
            try:
                words, figures = turn(stage, scenario, args)
            except measuring.Stopped as reason:
                if name == FORGE.name:
                    raise
                words, figures = f"failed: {reason}", {}
                failed[f"{name}, {scenario}"] = str(reason).splitlines()[0]
            found[name].append(figures)
            say(f"  [{done:>3}/{total}] {name:<16} {words}")
    return {name: turns for name, turns in found.items() if all(turns)}


def measure(contenders: list[Contender], args: argparse.Namespace) -> tuple[Results, dict[str, str], str]:
    """Everything that was asked for, what failed, and PostgreSQL's version."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="forge-peers-")))
        admin = stack.enter_context(postgres())
        wants_redis = any("redis" in contender.needs for contender in contenders)
        socket = stack.enter_context(redis(folder)) if wants_redis else ""
        stages = [Stage(contender, folder, admin, socket) for contender in contenders]
        for stage in stages:
            stack.callback(stage.close)
        with psycopg.connect(admin) as conn:
            server = str(conn.info.parameter_status("server_version")).split()[0]
        failed: dict[str, str] = {}
        found = {scenario: rounds(stages, scenario, args, failed) for scenario in args.only}
        return found, failed, server


def main() -> None:
    """About a quarter of an hour for everything."""
    args = arguments()
    began = time.perf_counter()
    contenders, skipped = choose(args.peers)
    if args.setup:
        return
    results, failed, server = measure(contenders, args)
    about = facts()
    about["versions"] = {"postgresql": server} | environment.versions() | about["versions"]
    figures = summary(results, contenders)
    figures |= {"scenario": "peers", "backend": "postgres", "rounds": args.rounds, "skipped": skipped, "failed": failed}
    figures["run_seconds"] = round(time.perf_counter() - began, 1)
    report.markdown(args.markdown, figures, about, contenders)
    report.plot(args.plot, figures)
    say(f"\n{report.table(figures, contenders)}\n")
    for key, words in report.RATIOS:
        if key in figures:
            say(f"  {figures[key]:>7}  {words}")
    if args.json:
        print(json.dumps(figures | about))


if __name__ == "__main__":
    main()
