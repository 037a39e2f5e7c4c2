"""Procrastinate over psycopg. The workers are its own command line's, on `app`; as a program it produces."""

from __future__ import annotations

import procrastinate
import psycopg

from bench.rivals.board import hit
from bench.rivals.payloads import chunks
from bench.rivals.producing import Payloads, serve

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo="", max_size=8))


@app.task(name="hit")
async def run(i: int, t: float, pad: str) -> None:
    """The job."""
    hit(i)


class Producer:
    """`task.defer` and `task.batch_defer`, by the synchronous connector."""

    def __init__(self) -> None:
        self.db = psycopg.connect("", autocommit=True)
        self.app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=""))
        self.app.open()
        self.app.schema_manager.apply_schema()
        self.task = self.app.task(run.func, name="hit")

    def purge(self) -> None:
        self.db.execute("truncate procrastinate_jobs cascade")

    def unfinished(self) -> int:
        row = self.db.execute("select count(*) from procrastinate_jobs where status in ('todo', 'doing')").fetchone()
        assert row is not None
        return int(row[0])

    def single(self, payloads: Payloads) -> None:
        for payload in payloads:
            self.task.defer(**payload)

    def bulk(self, payloads: Payloads) -> None:
        for chunk in chunks(payloads):
            self.task.batch_defer(*chunk)


if __name__ == "__main__":
    serve(Producer())
