"""Huey on Redis. The workers are its own command line's, on `huey`; as a program it produces."""

from __future__ import annotations

from huey import RedisHuey

from bench.rivals.board import hit
from bench.rivals.on_redis import SOCKET, Producer
from bench.rivals.producing import serve

huey = RedisHuey("bench", url=f"unix://{SOCKET}", results=False)


@huey.task()
def run(i: int, t: float, pad: str) -> None:
    """The job."""
    hit(i)


if __name__ == "__main__":
    from bench.rivals.huey import run as by_name  # a job carries its function's module, which here is __main__

    # It does not acknowledge: a job that was taken off the list is done as far as Redis can tell.
    serve(Producer(by_name, lambda client: huey.pending_count()))
