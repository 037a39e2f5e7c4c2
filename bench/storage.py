"""The storage contract against the raw database: claim + finalize(done), a pinned xmin, a large backlog, WAL per job.

Keys: ratio_batch_1000 and ratio_batch_100 (forge over hand-written psycopg on the same tables), ratio_to_lean (over
minimal tables), ratio_pinned_xmin (with a REPEATABLE READ transaction held open over without), ratio_backlog (time of a
claim at 2,000,000 pending over 10,000), wal_bytes_per_job (insert to history), sqlite_ratio (the least of three batch
sizes, over apsw that waits for the disk at each commit; sqlite_unsynced_ratio: over apsw that, like forge, does not for
claims). backend is `both` unless one is asked for: then the keys of the other are missing. lost and duplicates are what
history, counted in plain SQL after each turn, has too little or too much.
"""

from __future__ import annotations

import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench import xmin
from bench.common import PAYLOAD, arguments, facts, finish, interleaved, median, ratio, say
from bench.ground import drain, ground
from bench.raw import LEAN_TABLES, Lean, Raw
from bench.raw_sqlite import RawSqlite
from forge import fastpath
from forge.job import NewJob
from forge.storage import Storage, open_storage
from forge.storage.contract import LowWater


def jobs(n: int) -> list[NewJob]:
    """n no-op jobs."""
    return [NewJob(id_, "tasks.noop", PAYLOAD) for id_ in fastpath.uuid7_many(n)]


class Tally:
    """What the turns of forge lost or did twice, by counting history."""

    lost = duplicates = 0

    def count(self, n: int, found: int) -> None:
        """So many jobs were to end, so many are there."""
        self.lost += max(0, n - found)
        self.duplicates += max(0, found - n)


TALLY = Tally()


def ended(url: str) -> int:
    """Jobs in history that are done."""
    with psycopg.connect(url) as conn:
        row = conn.execute("select count(*) from forge.job_history where status = 'done'").fetchone()
    assert row is not None
    return int(row[0])


def tidy(url: str, *tables: str) -> None:
    """Equal ground for every turn: empty tables, no vacuum left to do, no checkpoint due."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(f"truncate {', '.join(tables)}")
        conn.execute("checkpoint")


FORGE_TABLES = ("forge.job", "forge.job_history")


def forge_turn(url: str, storage: Storage, n: int, batch: int) -> float:
    """Jobs per second through the contract."""
    tidy(url, *FORGE_TABLES)
    storage.enqueue(jobs(n))
    began = time.perf_counter()
    drain(storage, batch)
    seconds = time.perf_counter() - began
    TALLY.count(n, ended(url))
    return n / seconds


def raw_turn(url: str, raw: Raw, n: int, batch: int) -> float:
    """Jobs per second by hand."""
    tidy(url, *(("lean.job", "lean.job_done") if isinstance(raw, Lean) else FORGE_TABLES))
    raw.fill(fastpath.uuid7_many(n))
    began = time.perf_counter()
    assert raw.drain(batch) == n
    return n / (time.perf_counter() - began)


def cycles(url: str, storage: Storage, n: int, rounds: int) -> dict[str, Any]:
    """Claim + finalize at batch 1000 and 100."""
    raw, lean = Raw(url), Lean(url)
    found: dict[str, Any] = {}
    for batch, size in ((1000, n), (100, n // 2)):
        say(f"claim + finalize, batch {batch}, {size:,} jobs a turn")
        contenders = {
            "forge": partial(forge_turn, url, storage, size, batch),
            "raw, same tables": partial(raw_turn, url, raw, size, batch),
        }
        if batch == 1000:
            contenders["raw, lean tables"] = partial(raw_turn, url, lean, size, batch)
        rates = interleaved(contenders, rounds)
        found[f"ratio_batch_{batch}"] = ratio(rates, "forge", "raw, same tables")
        found[f"jobs_per_s_batch_{batch}"] = median(rates["forge"])
        found[f"raw_jobs_per_s_batch_{batch}"] = median(rates["raw, same tables"])
        if batch == 1000:
            found["ratio_to_lean"] = ratio(rates, "forge", "raw, lean tables")
            found["lean_jobs_per_s"] = median(rates["raw, lean tables"])
    raw.close()
    lean.close()
    return found


def claim_time(storage: Storage, batch: int = 100, claims: int = 60) -> float:
    """Median seconds of a claim; what was claimed is given back."""
    who = storage.register("bench", ["default"], "localhost", 1)
    water, times = LowWater(), []
    for _ in range(claims):
        began = time.perf_counter()
        assert len(storage.claim(who, "default", batch, water)) == batch
        times.append(time.perf_counter() - began)
    storage.deregister(who)
    return statistics.median(times)


def backlog(url: str, storage: Storage, large: int = 2_000_000, small: int = 10_000) -> dict[str, Any]:
    """A claim's time at a small and at a large backlog, in turns, each on fresh tables: jobs that have been claimed and
    given back lie scattered, which is another matter."""
    times: dict[int, list[float]] = {small: [], large: []}
    for size in (small, large, small, large, small):
        say(f"a claim of 100 at a backlog of {size:,}")
        tidy(url, *FORGE_TABLES)
        for _ in range(0, size, 100_000):
            storage.enqueue(jobs(min(size, 100_000)))
        times[size].append(claim_time(storage))
        say(f"  {times[size][-1] * 1000:.2f} ms")
    few, many = statistics.median(times[small]), statistics.median(times[large])
    return {
        "ratio_backlog": round(many / few, 3),
        "claim_ms_small": round(few * 1000, 3),
        "claim_ms_large": round(many * 1000, 3),
    }


def wal(url: str, storage: Storage, n: int = 50_000) -> dict[str, Any]:
    """Bytes of log from insert to history."""
    tidy(url, *FORGE_TABLES)
    with psycopg.connect(url, autocommit=True) as conn:
        lsn = "select pg_current_wal_insert_lsn() - '0/0'::pg_lsn"
        points = [conn.execute(lsn).fetchone()]
        storage.enqueue(jobs(n))
        points.append(conn.execute(lsn).fetchone())
        drain(storage, 1000)
        points.append(conn.execute(lsn).fetchone())
    start, filled, end = (int(point[0]) for point in points if point is not None)
    return {"wal_bytes_per_job": round((end - start) / n), "wal_bytes_insert": round((filled - start) / n)}


def sqlite_turn(storage: Storage, raw: RawSqlite, n: int, work: Callable[[], int]) -> float:
    """Jobs per second of `work`, on the same backlog for both."""
    raw.clear()
    storage.enqueue(jobs(n))
    began = time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    TALLY.count(n, raw.ended())
    return n / seconds


def sqlite(n: int, rounds: int) -> dict[str, Any]:
    """The same cycle on SQLite, synchronous=FULL, at three batch sizes."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="forge-bench-") as folder:
        for batch, size in ((1000, n), (100, n), (1, n // 40)):
            say(f"SQLite claim + finalize, batch {batch}, {size:,} jobs a turn")
            path = f"{folder}/{batch}.db"
            with open_storage(f"sqlite:///{path}") as storage:
                storage.migrate()
                raw, lax = RawSqlite(path), RawSqlite(path, sync_claims=False)
                contenders = {
                    "forge": partial(sqlite_turn, storage, raw, size, partial(drain, storage, batch)),
                    "raw apsw": partial(sqlite_turn, storage, raw, size, partial(raw.drain, batch)),
                    "raw, claims unsynced": partial(sqlite_turn, storage, raw, size, partial(lax.drain, batch)),
                }
                rates = interleaved(contenders, rounds)
                raw.close()
                lax.close()
            found[f"sqlite_ratio_batch_{batch}"] = ratio(rates, "forge", "raw apsw")
            found[f"sqlite_unsynced_ratio_batch_{batch}"] = ratio(rates, "forge", "raw, claims unsynced")
            found[f"sqlite_jobs_per_s_batch_{batch}"] = median(rates["forge"])
    for name in ("sqlite_ratio", "sqlite_unsynced_ratio"):
        found[name] = min(value for key, value in found.items() if key.startswith(f"{name}_batch"))
    return found


def on_postgres(n: int, rounds: int) -> tuple[dict[str, Any], str]:
    """Everything there is to know about it, and the server's version."""
    with ground("postgres") as db:
        url, storage = db.url, db.storage
        with psycopg.connect(url, autocommit=True) as conn:
            conn.execute(LEAN_TABLES)
        figures = wal(url, storage)  # first: later, vacuum works on what the other turns left behind
        figures |= cycles(url, storage, n, rounds)
        held = xmin.pinned(db, min(200_000, 4 * n), max(2, rounds // 2))
        TALLY.lost, TALLY.duplicates = TALLY.lost + held.pop("lost"), TALLY.duplicates + held.pop("duplicates")
        figures |= {"ratio_pinned_xmin": held["ratio"], "jobs_per_s_pinned": held["pinned_jobs_per_s"]}
        figures |= backlog(url, storage, large=min(2_000_000, 40 * n))
    return figures, str(db.server)


def main() -> None:
    """Everything, in about five minutes."""
    args = arguments(__doc__ or "", jobs=60_000, rounds=5, backends=("both", "postgres", "sqlite"))
    gc.freeze()  # what was there before the work is not walked again and again; for both contenders alike
    began = time.perf_counter()
    figures: dict[str, Any] = {}
    server = None
    if args.backend != "sqlite":
        figures, server = on_postgres(args.jobs, args.rounds)
    if args.backend != "postgres":
        figures |= sqlite(args.jobs, args.rounds)
    rate = figures.get("jobs_per_s_batch_1000") or figures["sqlite_jobs_per_s_batch_1000"]
    lost, twice = TALLY.lost, TALLY.duplicates
    finish(args, began, args.jobs, jobs_per_s=rate, lost=lost, duplicates=twice, server=server, **figures)


if __name__ == "__main__":
    assert facts()["impl"] == "c", "build the extension first: make setup"
    main()
