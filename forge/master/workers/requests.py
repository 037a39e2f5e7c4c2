"""What workers ask of the master and tell it while jobs run: jobs to be stored now, tokens of a budget, progress."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from forge.codec import check_name
from forge.errors import ForgeError
from forge.job import Enqueued, NewJob, Receipt
from forge.job_messages import new_job_of
from forge.master.database_threads import DatabaseThread
from forge.master.message_checks import MAX_NUMBER, listed, number, text, whole
from forge.master.queues.pod_budgets import PodBudgets, Reply
from forge.master.workers.slot import Slot
from forge.protocol import MAX_LINE, AnswerMessage, ProtocolError, frame_of
from forge.storage import Storage

__all__ = ["Requests"]

PROGRESS_EVERY = 1.0  # seconds
MOST_TEXT = 1000  # characters of its message
MOST_TOKENS = 2**31 - 1  # what a budget's capacity can be


class Requests:
    """Answers what workers ask for; keeps the latest progress of each job and writes it once a second."""

    def __init__(self, storage: Storage, side_thread: DatabaseThread, budgets: PodBudgets) -> None:
        self._storage, self._side_thread, self._budgets = storage, side_thread, budgets
        self._notes: dict[UUID, tuple[UUID, int, float, str | None]] = {}
        self._written_at = 0.0
        self._writing = False

    # -- questions ---------------------------------------------------------------------------------------------

    def asked(self, slot: Slot, message: dict[str, Any]) -> None:
        """Answer a request of a worker: now, or when the database has answered."""
        ask, about = whole(message, "ask", 0, MAX_NUMBER), text(message, "for")
        if slot.unwritten > MAX_LINE:
            raise ProtocolError("it goes on asking and does not read what is answered")
        try:
            match about:
                case "enqueue":
                    self._enqueue(slot, ask, [new_job_of(record) for record in listed(message, "jobs", dict)])
                case "acquire":
                    scope, tokens = check_name(message.get("scope"), "scope"), whole(message, "tokens", 1, MAX_NUMBER)
                    if tokens > MOST_TOKENS:
                        raise ForgeError(f"{scope}: {tokens} tokens are more than any budget has")
                    self._budgets.acquire(scope, tokens, self._reply(slot, {"answer": ask, "granted": True}))
                case "drain":
                    self._budgets.drain(check_name(message.get("scope"), "scope"), self._reply(slot, {"answer": ask}))
                case _:
                    raise ProtocolError(f"it asks for {about[:100]!r}")
        except ForgeError as e:
            slot.say(frame_of({"answer": ask, "error": str(e)}))

    def _enqueue(self, slot: Slot, number: int, jobs: Sequence[NewJob]) -> None:
        serial = slot.serial

        def answer(receipts: Sequence[Receipt] | None, error: str | None) -> None:
            if slot.serial != serial:
                return  # who asked is gone
            if receipts is None:
                slot.say(frame_of({"answer": number, "error": error or "not stored"}))
            else:
                found = [(isinstance(receipt, Enqueued), receipt.id.hex) for receipt in receipts]
                slot.say(frame_of({"answer": number, "receipts": found}))

        self._side_thread.send(lambda: self._storage.enqueue(jobs), answer)

    def _reply(self, slot: Slot, granted: AnswerMessage) -> Reply:
        """A function that tells the worker what came of asking for tokens, unless that worker is gone by then."""
        serial, number = slot.serial, granted["answer"]

        def reply(wait: float | None, error: str | None) -> None:
            if slot.serial != serial:
                return
            if error is not None:
                slot.say(frame_of({"answer": number, "error": error}))
            else:
                slot.say(frame_of(granted if wait is None else {"answer": number, "retry_after": wait}))

        return reply

    # -- progress ----------------------------------------------------------------------------------------------

    def progress(self, slot: Slot, message: dict[str, Any]) -> None:
        """Keep the progress that a handler reports; the latest of each job counts."""
        claim, _ = slot.in_hand.get(text(message, "id"), (None, 0.0))
        percent = number(message, "percent", 0, 100)
        said = None if message.get("message") is None else text(message, "message", MOST_TEXT)
        if claim is not None:
            self._notes[claim.id] = (claim.id, claim.token, percent, said)

    def tick(self, now: float) -> None:
        """Write the progress of jobs, if it is time, and do what is due of budgets."""
        self._budgets.tick(now)
        if self._notes and not self._writing and now - self._written_at >= PROGRESS_EVERY:
            notes, self._notes = list(self._notes.values()), {}
            self._written_at, self._writing = now, True
            self._side_thread.send(lambda: self._storage.progress(notes), self._noted)

    def _noted(self, _: None, __: str | None) -> None:
        """Progress was written. If it could not be, the next one replaces it."""
        self._writing = False
