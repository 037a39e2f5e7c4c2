"""PgQueuer over asyncpg, on uvloop. `produce`, or `work BATCH` for a worker."""

from __future__ import annotations

import asyncio
import json
import sys
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from bench.rivals.board import hit
from bench.rivals.payloads import chunks
from bench.rivals.producing import Payloads, serve


async def work(batch: int) -> None:
    """One worker process."""
    queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect()))

    @queuer.entrypoint("hit")
    async def run(job: Job) -> None:
        hit(json.loads(job.payload)["i"])

    await queuer.run(dequeue_timeout=timedelta(seconds=30), batch_size=batch)


class Producer:
    """`Queries.enqueue`, with one job and with lists."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self.conn = self.loop.run_until_complete(asyncpg.connect())
        self.queries = Queries(AsyncpgDriver(self.conn))
        self.loop.run_until_complete(self.queries.install())

    def purge(self) -> None:
        self.loop.run_until_complete(self.conn.execute("truncate pgqueuer, pgqueuer_log, pgqueuer_statistics"))

    def unfinished(self) -> int:
        return int(self.loop.run_until_complete(self.conn.fetchval("select count(*) from pgqueuer")))

    def single(self, payloads: Payloads) -> None:
        async def go() -> None:
            for payload in payloads:
                await self.queries.enqueue("hit", json.dumps(payload).encode())

        self.loop.run_until_complete(go())

    def bulk(self, payloads: Payloads) -> None:
        async def go() -> None:
            for chunk in chunks(payloads):
                data: list[bytes | None] = [json.dumps(payload).encode() for payload in chunk]
                await self.queries.enqueue(["hit"] * len(chunk), data, [0] * len(chunk))

        self.loop.run_until_complete(go())


if __name__ == "__main__":
    if sys.argv[1] == "produce":
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        serve(Producer())
    else:
        uvloop.run(work(int(sys.argv[2])))
