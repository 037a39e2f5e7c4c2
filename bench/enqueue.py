"""Enqueueing through the client against the raw database: bulk against COPY, single against INSERT + commit.

Keys: ratio_copy (task.enqueue_many over COPY of the same rows into the same table by hand; on SQLite, over executemany
in one transaction), ratio_single (task.enqueue over one INSERT and commit), bulk_per_s, raw_copy_per_s, single_per_s,
raw_insert_per_s. The client's side includes all it does: arguments bound and checked, JSON, ids, receipts. lost and
duplicates are what the table, counted in plain SQL after each turn, has too little or too much.
"""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import apsw
import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import PAYLOAD, arguments, facts, finish, interleaved, median, ratio, say
from bench.ground import Ground, SqliteGround, ground
from bench.raw_sqlite import INSERT
from forge import Forge, fastpath

PAD = "x" * 45  # {"args":[1234,123.456789,"xxx…"],"kwargs":{}} is about 100 bytes, like the raw payload


class Turns:
    """Turns on empty tables, each counted afterwards."""

    def __init__(self, db: Ground) -> None:
        self.db = db
        self.lost = self.duplicates = 0

    def timed(self, n: int, prepare: Callable[[], Any], work: Callable[[Any], object]) -> float:
        """Jobs per second of `work` on what `prepare` has made."""
        self.db.reset()
        made = prepare()
        began = time.perf_counter()
        work(made)
        seconds = time.perf_counter() - began
        found = self.db.live()
        self.lost += max(0, n - found)
        self.duplicates += max(0, found - n)
        return n / seconds


def bulk(turns: Turns, app: Forge, n: int, rounds: int) -> dict[str, Any]:
    """One call with n jobs; what is counted is what is in the table."""
    url = turns.db.url

    @app.task(name="bench.noop", keep_result=False)
    def noop(i: int, t: float, pad: str) -> None: ...

    def copy(rows: list[tuple[str, ...]]) -> None:
        with psycopg.connect(url) as conn:
            with conn.cursor().copy("copy forge.job (id, queue, kind, payload) from stdin") as copy:
                for row in rows:
                    copy.write_row(row)
            conn.commit()

    def by_forge() -> float:
        return turns.timed(n, lambda: [(i, 123.456789, PAD) for i in range(n)], noop.enqueue_many)

    def by_hand() -> float:
        if isinstance(turns.db, SqliteGround):
            return turns.timed(n, lambda: fastpath.uuid7_many(n), turns.db.raw().fill)
        rows = [(str(id_), "default", "bench.noop", PAYLOAD.decode()) for id_ in fastpath.uuid7_many(n)]
        return turns.timed(n, lambda: rows, copy)

    say(f"bulk, {n:,} jobs a turn")
    rates = interleaved({"forge": by_forge, "raw COPY": by_hand}, rounds)
    return {
        "ratio_copy": ratio(rates, "forge", "raw COPY"),
        "bulk_per_s": median(rates["forge"]),
        "raw_copy_per_s": median(rates["raw COPY"]),
    }


def single(turns: Turns, app: Forge, n: int, rounds: int) -> dict[str, Any]:
    """One job, one commit, one after another."""
    db = turns.db

    @app.task(name="bench.one", keep_result=False)
    def one(i: int, t: float, pad: str) -> None: ...

    def enqueue(_: Any) -> None:
        for i in range(n):
            one.enqueue(i, 123.456789, PAD)

    def by_hand() -> float:
        if isinstance(db, SqliteGround):
            lite = apsw.Connection(str(db.path))
            lite.execute("pragma synchronous = full")
            rate = turns.timed(n, lambda: fastpath.uuid7_many(n), partial(insert_sqlite, lite))
            lite.close()
            return rate
        with psycopg.connect(db.url, autocommit=True, prepare_threshold=0) as conn:
            return turns.timed(n, lambda: [str(id_) for id_ in fastpath.uuid7_many(n)], partial(insert, conn))

    say(f"single, {n:,} jobs a turn")
    rates = interleaved({"forge": lambda: turns.timed(n, lambda: None, enqueue), "raw INSERT": by_hand}, rounds)
    return {
        "ratio_single": ratio(rates, "forge", "raw INSERT"),
        "single_per_s": median(rates["forge"]),
        "raw_insert_per_s": median(rates["raw INSERT"]),
    }


def insert(conn: psycopg.Connection[Any], ids: Sequence[str]) -> None:
    """One job, one commit, by hand."""
    statement = "insert into forge.job (id, queue, kind, payload) values (%s, 'default', 'bench.one', %s)"
    for id_ in ids:
        conn.execute(statement, (id_, PAYLOAD.decode()))


def insert_sqlite(conn: apsw.Connection, ids: Sequence[UUID]) -> None:
    """The same."""
    for id_ in ids:
        now = int(time.time() * 1e6)
        conn.execute(INSERT, (id_.bytes, now, now, "default", "bench.one", PAYLOAD.decode()))


def main() -> None:
    """Both, in about a minute."""
    args = arguments(__doc__ or "", jobs=100_000, rounds=5)
    gc.freeze()  # what was there before the work is not walked again and again; for both contenders alike
    began = time.perf_counter()
    with ground(args.backend) as db, Forge(db.url) as app:
        turns = Turns(db)
        figures = bulk(turns, app, args.jobs, args.rounds)
        figures |= single(turns, app, max(100, args.jobs // 50), args.rounds)
    finish(
        args,
        began,
        args.jobs,
        jobs_per_s=figures["bulk_per_s"],
        lost=turns.lost,
        duplicates=turns.duplicates,
        server=db.server,
        **figures,
    )


if __name__ == "__main__":
    assert facts()["impl"] == "c", "build the extension first: make setup"
    main()
