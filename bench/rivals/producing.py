"""The enqueueing side of a contender: a process of its own, in the contender's environment, driven line by line.

A request is a line of JSON with `do` (purge, fill, single, bulk, paced, unfinished) and `jobs`, an answer a line of
JSON: `seconds` that the calls took, by this process's clock; `sent`, when each paced job was handed over; or
`unfinished`, what the queue itself still has to do. Starting up and connecting are not counted. The Node side speaks
the same.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any, Protocol

from bench.rivals.payloads import payload

Payloads = list[dict[str, Any]]


class Producer(Protocol):
    """A contender's client, by its documented interface. It connects and makes its tables when it is made."""

    def purge(self) -> None:
        """No jobs, and nothing left of former ones."""

    def unfinished(self) -> int:
        """Jobs that the queue does not say are done."""

    def single(self, payloads: Payloads) -> None:
        """One call and one commit each."""

    def bulk(self, payloads: Payloads) -> None:
        """CHUNK jobs a call."""


def _paced(producer: Producer, jobs: int, rate: float) -> list[float]:
    sent, due = [], time.monotonic()
    for i in range(jobs):
        time.sleep(max(0.0, due - time.monotonic()))
        due += 1 / rate
        job = payload(i)
        sent.append(job["t"])
        producer.single([job])
    return sent


def _timed(producer: Producer, request: dict[str, Any]) -> float:
    first = request.get("first", 0)
    payloads = [payload(i) for i in range(first, first + request["jobs"])]
    work = producer.bulk if request["do"] == "bulk" else producer.single
    began = time.perf_counter()
    work(payloads)
    return time.perf_counter() - began


def _answer(producer: Producer, request: dict[str, Any]) -> dict[str, Any]:
    match request["do"]:
        case "purge":
            producer.purge()
            return {}
        case "unfinished":
            return {"unfinished": producer.unfinished()}
        case "paced":
            return {"sent": _paced(producer, request["jobs"], request["rate"])}
        case _:
            return {"seconds": _timed(producer, request)}


def serve(producer: Producer) -> None:
    """Until standard input ends."""
    gc.freeze()  # what was there before the work is not walked again and again; for all contenders alike
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(_answer(producer, json.loads(line))), flush=True)
