"""What the queues on Redis share: no bulk interface, and a database of their own that is emptied by one command."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import redis

from bench.rivals.producing import Payloads

SOCKET = os.environ["PEERS_REDIS"]


class Producer:
    """`send(**payload)` enqueues a job; `waiting(client)` are those that are not done."""

    def __init__(self, send: Callable[..., Any], waiting: Callable[[Any], int]) -> None:
        self.send, self.waiting = send, waiting
        self.redis = redis.Redis(unix_socket_path=SOCKET)

    def purge(self) -> None:
        self.redis.flushall()

    def unfinished(self) -> int:
        return int(self.waiting(self.redis))

    def single(self, payloads: Payloads) -> None:
        for payload in payloads:
            self.send(**payload)

    bulk = single
