"""What handlers ask of the master and tell it. A question has a number, and waits for the answer with that number."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any
from uuid import UUID

from forge.errors import ForgeError, InvalidJob
from forge.job import Claim, Deduped, Enqueued, NewJob, Receipt
from forge.job_messages import record_of
from forge.protocol import MAX_LINE, AnswerMessage, Question, frame_of

__all__ = ["MasterLink"]


class MasterLink:
    """The `Link` of contexts in a forked worker. Handlers ask in their threads; who reads brings answers."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self._send = send
        self.stopping = False
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[Future[Any], Callable[[AnswerMessage], Any]]] = {}

    @property
    def waited_for(self) -> bool:
        """Whether an answer is to come."""
        return bool(self._open)

    def enqueue(self, claim: Claim, jobs: list[NewJob]) -> Future[list[Receipt]]:
        """See `Link`."""
        number, records = next(self._numbers), [record_of(job) for job in jobs]
        return self._ask(_receipts, {"ask": number, "for": "enqueue", "id": claim.id.hex, "jobs": records})

    def acquire(self, claim: Claim, scope: str, tokens: int) -> Future[float | None]:
        """See `Link`."""
        question: Question = {
            "ask": next(self._numbers),
            "for": "acquire",
            "id": claim.id.hex,
            "scope": scope,
            "tokens": tokens,
        }
        return self._ask(_wait, question)

    def drain(self, scope: str) -> Future[None]:
        """See `Link`."""
        return self._ask(lambda _: None, {"ask": next(self._numbers), "for": "drain", "scope": scope})

    def progress(self, claim: Claim, percent: float, message: str | None) -> None:
        """See `Link`."""
        self._send(frame_of({"say": "progress", "id": claim.id.hex, "percent": percent, "message": message}))

    def pod_stops(self) -> None:
        """From who reads: handlers that look see it from here on."""
        self.stopping = True

    def answered(self, message: AnswerMessage) -> None:
        """The master has answered."""
        future, read = self._open.pop(message["answer"])
        if "error" in message:
            future.set_exception(ForgeError(message["error"]))
        else:
            future.set_result(read(message))

    def _ask(self, read: Callable[[AnswerMessage], Any], question: Question) -> Future[Any]:
        line = frame_of(question)
        if len(line) > MAX_LINE:
            raise InvalidJob(f"that is {len(line):,} bytes at once; the limit is {MAX_LINE:,}: do it in parts")
        future: Future[Any] = Future()
        self._open[question["ask"]] = future, read
        self._send(line)
        return future


def _receipts(message: AnswerMessage) -> list[Receipt]:
    return [Enqueued(UUID(id)) if stored else Deduped(UUID(id)) for stored, id in message["receipts"]]


def _wait(message: AnswerMessage) -> float | None:
    return None if message.get("granted") else float(message["retry_after"])
