"""Dramatiq on Redis. The workers are its own command line's; as a program it produces."""

from __future__ import annotations

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.rivals.board import hit
from bench.rivals.on_redis import SOCKET, Producer
from bench.rivals.producing import serve

broker = RedisBroker(url=f"unix://{SOCKET}")
dramatiq.set_broker(broker)


@dramatiq.actor
def run(i: int, t: float, pad: str) -> None:
    """The job."""
    hit(i)


if __name__ == "__main__":
    # A message stays in the hash until it is acknowledged.
    serve(Producer(run.send, lambda client: client.hlen("dramatiq:default.msgs")))
