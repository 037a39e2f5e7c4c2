"""Enqueueing through the client against the raw database: bulk against COPY, single against INSERT + commit.

Keys: ratio_copy (task.enqueue_many over COPY of the same rows into the same table by hand), ratio_single (task.enqueue
over one INSERT and commit). The client's side includes all it does: arguments bound and checked, JSON, ids, receipts.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path
from typing import Any

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import PAYLOAD, arguments, facts, finish, interleaved, median, postgres, ratio, say
from bench.storage import FORGE_TABLES, tidy
from forge import Forge, fastpath
from forge.storage import open_storage

PAD = "x" * 45  # {"args":[1234,123.456789,"xxx…"],"kwargs":{}} is about 100 bytes, like the raw payload


def count(url: str) -> int:
    """Jobs in the table."""
    with psycopg.connect(url) as conn:
        row = conn.execute("select count(*) from forge.job").fetchone()
    assert row is not None
    return int(row[0])


def bulk(app: Forge, url: str, n: int, rounds: int) -> dict[str, Any]:
    """One call with n jobs; what is counted is what is in the table."""

    @app.task(name="bench.noop", keep_result=False)
    def noop(i: int, t: float, pad: str) -> None: ...

    def by_forge() -> float:
        tidy(url, *FORGE_TABLES)
        calls = [(i, 123.456789, PAD) for i in range(n)]
        began = time.perf_counter()
        noop.enqueue_many(calls)
        seconds = time.perf_counter() - began
        assert count(url) == n
        return n / seconds

    def by_copy() -> float:
        tidy(url, *FORGE_TABLES)
        rows = [(str(id_), "default", "bench.noop", PAYLOAD.decode()) for id_ in fastpath.uuid7_many(n)]
        began = time.perf_counter()
        with psycopg.connect(url) as conn:
            with conn.cursor().copy("copy forge.job (id, queue, kind, payload) from stdin") as copy:
                for row in rows:
                    copy.write_row(row)
            conn.commit()
        seconds = time.perf_counter() - began
        assert count(url) == n
        return n / seconds

    say(f"bulk, {n:,} jobs a turn")
    rates = interleaved({"forge": by_forge, "raw COPY": by_copy}, rounds)
    return {
        "ratio_copy": ratio(rates, "forge", "raw COPY"),
        "bulk_per_s": median(rates["forge"]),
        "raw_copy_per_s": median(rates["raw COPY"]),
    }


def single(app: Forge, url: str, n: int, rounds: int) -> dict[str, Any]:
    """One job, one commit, one after another."""

    @app.task(name="bench.one", keep_result=False)
    def one(i: int, t: float, pad: str) -> None: ...

    def by_forge() -> float:
        tidy(url, *FORGE_TABLES)
        began = time.perf_counter()
        for i in range(n):
            one.enqueue(i, 123.456789, PAD)
        seconds = time.perf_counter() - began
        assert count(url) == n
        return n / seconds

    def by_insert() -> float:
        tidy(url, *FORGE_TABLES)
        ids = [str(id_) for id_ in fastpath.uuid7_many(n)]
        insert = "insert into forge.job (id, queue, kind, payload) values (%s, 'default', 'bench.one', %s)"
        with psycopg.connect(url, autocommit=True, prepare_threshold=0) as conn:
            began = time.perf_counter()
            for id_ in ids:
                conn.execute(insert, (id_, PAYLOAD.decode()))
            seconds = time.perf_counter() - began
        assert count(url) == n
        return n / seconds

    say(f"single, {n:,} jobs a turn")
    rates = interleaved({"forge": by_forge, "raw INSERT": by_insert}, rounds)
    return {
        "ratio_single": ratio(rates, "forge", "raw INSERT"),
        "single_per_s": median(rates["forge"]),
        "raw_insert_per_s": median(rates["raw INSERT"]),
    }


def main() -> None:
    """Both, in about a minute."""
    args = arguments(__doc__ or "", jobs=100_000, rounds=5)
    gc.freeze()  # what was there before the work is not walked again and again; for both contenders alike
    began = time.perf_counter()
    with postgres() as url, Forge(url) as app:
        with open_storage(url) as storage:
            storage.migrate()
        figures = bulk(app, url, args.jobs, args.rounds)
        figures |= single(app, url, max(100, args.jobs // 50), args.rounds)
    finish(args, began, args.jobs, jobs_per_s=figures["bulk_per_s"], **figures)


if __name__ == "__main__":
    assert facts()["impl"] == "c", "build the extension first: make setup"
    main()
