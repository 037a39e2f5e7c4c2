"""forge: a real `forge-master` with two workers, a low-level handler. Runs in forge's own environment."""

from __future__ import annotations

import os
from typing import Any

import psycopg

from bench.rivals.board import hit
from bench.rivals.payloads import chunks
from bench.rivals.producing import Payloads, serve
from forge import Context, Forge
from forge.storage import open_storage

app = Forge()


@app.handler("bench.hit")
def run(ctx: Context, payload: Any) -> None:
    """The job."""
    hit(payload["i"])


class Producer:
    """`app.enqueue` and `app.enqueue_many`."""

    def __init__(self) -> None:
        url = os.environ["FORGE_DATABASE_URL"]
        with open_storage(url) as storage:
            storage.migrate()
        self.db = psycopg.connect(url, autocommit=True)

    def purge(self) -> None:
        self.db.execute("truncate forge.job, forge.job_history")

    def unfinished(self) -> int:
        row = self.db.execute("select count(*) from forge.job").fetchone()  # an ended job has moved to the history
        assert row is not None
        return int(row[0])

    def single(self, payloads: Payloads) -> None:
        for payload in payloads:
            app.enqueue("bench.hit", payload)

    def bulk(self, payloads: Payloads) -> None:
        for chunk in chunks(payloads):
            app.enqueue_many([app.job("bench.hit", payload) for payload in chunk])


if __name__ == "__main__":
    serve(Producer())
