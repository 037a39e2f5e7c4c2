"""Celery on Redis. The workers are its own command line's; as a program it produces."""

from __future__ import annotations

import os

from celery import Celery

from bench.rivals.board import hit
from bench.rivals.on_redis import SOCKET, Producer
from bench.rivals.producing import serve

app = Celery("bench", broker=f"redis+socket://{SOCKET}")
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=int(os.environ.get("PREFETCH", "4")),
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="hit", ignore_result=True)
def run(i: int, t: float, pad: str) -> None:
    """The job."""
    hit(i)


if __name__ == "__main__":
    serve(Producer(run.delay, lambda client: client.llen("celery") + client.hlen("unacked")))
