"""Endings, from when they are known until they are in the database.

A database that is away is waited for by the courier that writes. One that is there and refuses a batch refuses some
ending in it, and the others must not wait for that one for ever: the batch is halved until it is found.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from forge.errors import DatabaseError
from forge.job import Claim, Done, Ending, Failed, Released, Snooze
from forge.master.couriers import Courier, Post
from forge.master.meter import Meter
from forge.master.presence import Presence
from forge.master.telling import counted, log
from forge.storage import Storage
from forge.storage.contract import Fates

__all__ = ["MOST_UNWRITTEN", "Batch", "Writer"]

TRIES = 3  # a refusal may pass: a lone ending is tried this often before it is taken for the culprit
MOST_UNWRITTEN = 6000  # endings
PAUSE = 60.0  # seconds until a job whose result cannot be stored is tried again


class Batch:
    """Endings on their way. Call it until it answers; a DatabaseError means later."""

    def __init__(
        self, storage: Storage, endings: Sequence[Ending], max_crashes: int, meter: Meter | None = None
    ) -> None:
        self._storage, self._max_crashes, self._meter = storage, max_crashes, meter or Meter()
        self.fates: Fates = []
        self.refused: list[Ending] = []  # that could not be written
        self._todo = [list(endings)]
        self._stale: list[Ending] = []
        self._tries = 0

    def __call__(self) -> list[Ending]:
        """The stale ones, once all are written."""
        while self._todo:
            began = time.monotonic()
            try:
                part = self._storage.finalize(self._todo[-1], max_crashes=self._max_crashes, fates=self.fates)
            except DatabaseError as e:
                self._storage.now()  # raises while the database is away
                self._refused(e)
            else:
                self._meter.took("finalizes", began)
                self._stale += part
                self._todo.pop()
                self._tries = 0
        return self._stale

    def _refused(self, error: DatabaseError) -> None:
        part = self._todo.pop()
        if len(part) > 1:
            middle = len(part) // 2
            self._todo += [part[middle:], part[:middle]]
            return
        self._tries += 1
        if self._tries % TRIES:
            self._todo.append(part)
            raise error
        self.refused.append(part[0])
        if self._tries == TRIES:
            said = ascii(str(error))[1:-1][:500]
            self._todo.append([Ending(part[0].claim, Failed(f"the result could not be stored: {said}"), PAUSE)])
        else:  # not even that: the reaper will have it when this pod is gone
            self._tries = 0


class Writer:
    """What has ended is written at once if the courier is free, else with whatever ends until it is."""

    def __init__(
        self,
        storage: Storage,
        post: Post,
        presence: Presence,
        again: Callable[[str, float], None],
        meter: Meter | None = None,
    ) -> None:
        """`again` is told the queue and the seconds after which a job that was written may run again."""
        self._storage, self._presence, self._again = storage, presence, again
        self._meter = meter or Meter()
        # By queue, of those that are to be written. A plain dictionary: a Counter costs each job 0.15 µs more.
        self._done: dict[str, int] = {}
        self._courier = Courier("finalize", post, patient=True)
        self._endings: list[Ending] = []
        self._due: set[tuple[str, float]] = set()  # queues, and the seconds after which a job of theirs may run again
        self._under_way = 0
        self.on_written: Callable[[], None] = lambda: None  # called when some are in the database

    def start(self) -> None:
        """Start the courier."""
        self._courier.start()

    @property
    def unwritten(self) -> int:
        """Endings that are not in the database yet, as far as is known."""
        return self._under_way + len(self._endings)

    @property
    def behind(self) -> bool:
        """So many wait to be written that no more jobs should be claimed: else they pile up where writing is slower
        than running (11,000 were seen, and 60 MB after three million jobs)."""
        return self.unwritten > MOST_UNWRITTEN

    def done(self, endings: list[Ending]) -> None:
        """These of one queue have ended well, with nothing to keep."""
        self._endings += endings
        queue = endings[0].claim.queue
        self._done[queue] = self._done.get(queue, 0) + len(endings)

    def end(self, ending: Ending) -> None:
        """A job has ended."""
        self._endings.append(ending)
        claim, outcome = ending.claim, ending.outcome
        if type(outcome) is Done:
            self._done[claim.queue] = self._done.get(claim.queue, 0) + 1
            return
        if (seconds := _due_in(ending)) is not None:
            self._due.add((claim.queue, seconds))
        if isinstance(outcome, Failed):
            again = _again(ending) if claim.attempt < claim.max_attempts else "dead"
            log(f"{claim.kind} {claim.id} failed, {again}: {outcome.message}", claim.queue, logging.WARNING)

    def release(self, claims: Iterable[Claim], why: str | None = None) -> None:
        """Jobs go back as if they had never been claimed."""
        for claim in claims:
            self.end(Ending(claim, Released(why)))

    def forget(self) -> None:
        """They are somebody else's now."""
        self._endings.clear()
        self._done.clear()
        self._due.clear()

    def flush(self, max_crashes: int) -> None:
        """Send off what there is."""
        if self._endings and not self._courier.busy:
            endings, self._endings = self._endings, []
            due, self._due = self._due, set()
            done, self._done = self._done, {}
            self._under_way = len(endings)
            batch = Batch(self._storage, endings, max_crashes, self._meter)
            self._courier.send(batch, lambda stale, error: self._written(batch, done, due, stale, error))

    def _written(
        self,
        batch: Batch,
        done: dict[str, int],
        due: set[tuple[str, float]],
        stale: Sequence[Ending] | None,
        error: str | None,
    ) -> None:
        self._under_way = 0
        if error is not None:
            log(f"results could not be written: {error}", level=logging.ERROR)
        else:
            self._presence.is_back()
            undone = Counter(e.claim.queue for e in (*(stale or ()), *batch.refused) if type(e.outcome) is Done)
            for queue, n in done.items():
                self._meter.completed(queue, n - undone[queue])
            self._meter.ended(batch.fates)
        for queue, seconds in due:
            self._again(queue, seconds)
        self.on_written()
        if stale:
            first = stale[0].claim
            which = f"{first.kind} {first.id}{' first' if len(stale) > 1 else ''}"
            log(
                f"{counted(len(stale), 'job')} had been taken away from here ({which}); endings dropped",
                level=logging.WARNING,
            )


def _again(ending: Ending) -> str:
    """When it is tried again, in words. Whether its queue has a curve, the database knows."""
    return f"again in {abs(ending.delay):.1f} s{', or by its queue' if ending.delay < 0 else ''}"


def _due_in(ending: Ending) -> float | None:
    """Seconds until the job may run again, None if that is not known or never."""
    match ending.outcome:
        case Released():
            return ending.delay
        case Failed() if ending.claim.attempt < ending.claim.max_attempts:
            return abs(ending.delay)
        case Snooze(seconds=seconds):
            return seconds
    return None
