"""Endings, from when they are known until they are in the database. None is ever dropped.

A database that is away, or takes no writes, is waited for by the thread that writes. What cannot be written although
others can (see `forge.master.ending_batch`) is set apart, and tried again and again while the others go on.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from forge import failpoints
from forge.job import Claim, Dead, Done, Ending, Failed, Released, Snooze, Status
from forge.master.database_threads import DatabaseThread
from forge.master.ending_batch import TELL_AFTER, Apart, EndingBatch, group_of
from forge.master.news import Post
from forge.master.pod.log import Sometimes, counted, log
from forge.master.pod.meter import Meter
from forge.master.pod.presence import Presence
from forge.master.queues.chains import Chains
from forge.storage import Storage

__all__ = ["MOST_UNWRITTEN", "Finalizer", "without_payload"]

MOST_UNWRITTEN = 6000  # endings that may wait to be written before no more jobs are claimed
MOST_UNWRITTEN_BYTES = 32 * 1024 * 1024  # bytes of their results and follow-up jobs that may wait, likewise
LIGHT = 1024  # bytes: the payload of a job that has ended is dropped if it has more
TELL_EVERY = 60.0  # seconds between two lines that say that endings still wait


class Finalizer:
    """Takes the endings of jobs and has a thread write them: at once if it is free, else together with all that end
    until then."""

    def __init__(
        self,
        storage: Storage,
        post: Post,
        presence: Presence,
        again: Callable[[str, float], None],
        written: Callable[[], None],
        meter: Meter | None = None,
    ) -> None:
        """`again` is told the queue and the seconds after which a job that was written may run again; `written` is
        called when endings have come into the database."""
        self._storage, self._presence, self._again, self._on_written = storage, presence, again, written
        self._meter = meter or Meter()
        # By queue, of those that are to be written. A plain dictionary: a Counter costs each job 0.15 µs more.
        self._done: dict[str, int] = {}
        self._thread = DatabaseThread("finalize", post, patient=True)
        self._endings: list[Ending] = []
        self._apart: list[Apart] = []
        self._due: set[tuple[str, float]] = set()  # queues, and the seconds after which a job of theirs may run again
        self._bytes = 0  # of the results and follow-up jobs of those that are not under way
        self._bytes_under_way = 0
        self._batch: list[Ending] = []  # on its way
        self._sent_at = 0.0  # monotonic
        self._sometimes = Sometimes(TELL_EVERY)
        self.chains = Chains()  # whose last endings wait for the others
        self.ended = 0  # endings that have been written, or were stale

    def start(self) -> None:
        """Start the thread that writes."""
        self._thread.start()

    @property
    def unwritten(self) -> int:
        """How many endings are not in the database yet, as far as is known."""
        return len(self._batch) + len(self._endings) + len(self._apart) + len(self.chains.kept)

    @property
    def busy(self) -> bool:
        """Whether a batch is being written."""
        return self._thread.busy > 0

    @property
    def due(self) -> float:
        """When `flush` must be called at the latest (monotonic), for endings that were set apart."""
        return min((each.at for each in self._apart), default=math.inf) if not self._thread.busy else math.inf

    @property
    def behind(self) -> bool:
        """Whether so many endings wait to be written that no more jobs should be claimed. Else they pile up where
        writing is slower than running: 11,000 were seen, and 60 MB after three million jobs."""
        return self.unwritten > MOST_UNWRITTEN or self._bytes + self._bytes_under_way > MOST_UNWRITTEN_BYTES

    def held(self) -> Iterator[Claim]:
        """The claims whose endings are not in the database yet."""
        yield from (ending.claim for ending in self._batch)
        yield from (ending.claim for ending in self._endings)
        yield from (each.ending.claim for each in self._apart)
        yield from (ending.claim for ending in self.chains.kept.values())

    def done(self, endings: list[Ending]) -> None:
        """Take the endings of jobs of one queue that are done and have no result."""
        if failpoints.ARMED and failpoints.hit("forget_ending"):
            endings = endings[1:]
        if self.chains:
            endings, freed = self.chains.passed(endings)
            for ending in freed:
                self._take(ending)
        if endings:
            self._endings += endings
            queue = endings[0].claim.queue
            self._done[queue] = self._done.get(queue, 0) + len(endings)

    def end(self, ending: Ending) -> None:
        """Take the ending of a job."""
        if failpoints.ARMED and failpoints.hit("forget_ending"):
            return
        if self.chains:
            passed, freed = self.chains.passed((ending,))
            for each in (*passed, *freed):
                self._take(each)
        else:
            self._take(ending)

    def written(self, claim: Claim) -> None:
        """Count a job whose end is in the database already, written together with its handler's own writes."""
        self.ended += 1
        if self.chains:
            for each in self.chains.passed((Ending(claim, Done()),))[1]:
                self._take(each)

    def _take(self, ending: Ending) -> None:
        self._endings.append(without_payload(ending) if len(ending.claim.payload) > LIGHT else ending)
        if ending.result is not None or ending.children:
            self._bytes += len(ending.result or b"") + sum(len(job.payload) for job in ending.children)
        claim, outcome = ending.claim, ending.outcome
        if type(outcome) is Done:
            self._done[claim.queue] = self._done.get(claim.queue, 0) + 1
            return
        if (seconds := _due_in(ending)) is not None:
            self._due.add((claim.queue, seconds))
        if isinstance(outcome, Failed):
            again = _again(ending) if claim.attempt < claim.max_attempts else "dead"
            _tell(ending, f"failed, {again}", outcome.message)

    def release(self, claims: Iterable[Claim], why: str | None = None) -> None:
        """Give jobs back as if they had never been claimed; `why` is kept with them."""
        for claim in claims:
            self.end(Ending(claim, Released(why)))

    def forget(self) -> None:
        """Drop all endings that are not being written: the pod was reaped, and the jobs are another pod's now."""
        self._endings.clear()
        self._apart.clear()
        self.chains.clear()
        self._bytes = 0
        self._done.clear()
        self._due.clear()

    def flush(self, max_crashes: int) -> None:
        """If the thread is free, have it write all endings that are there, and those set apart whose time it is."""
        if self._thread.busy:
            self._tell_of_waiting()
            return
        if self.chains.kept:
            self._hand_over()
        again = self._due_again() if self._apart else []
        if self._apart and self._endings:
            self._join_apart()
        if self._endings or again:
            endings, self._endings = self._endings, []
            due, self._due = self._due, set()
            done, self._done = self._done, {}
            for each in again:
                if type(each.ending.outcome) is Done:
                    done[each.ending.claim.queue] = done.get(each.ending.claim.queue, 0) + 1
            self._batch = [*endings, *(each.ending for each in again)] if again else endings
            self._bytes_under_way, self._bytes = self._bytes, 0
            self._sent_at = time.monotonic()
            batch = EndingBatch(self._storage, endings, max_crashes, self._meter, again)
            self._thread.send(batch, lambda _, error: self._written(batch, again, done, due, error))

    def _hand_over(self) -> None:
        """Hand over the places of jobs whose endings wait for one other job. Where that fails they go on waiting for
        it."""

        def handed(last: Claim, done: bool | None, _: str | None) -> None:
            for ending in self.chains.handed_over(last) if done else ():
                self._take(ending)

        while (pair := self.chains.hand_over()) is not None:
            self._thread.send(partial(self._storage.lines.hand_over, *pair), partial(handed, pair[0]))

    def _due_again(self) -> list[Apart]:
        now = time.monotonic()
        found = [each for each in self._apart if each.at <= now]
        self._apart = [each for each in self._apart if each.at > now]
        return found

    def _join_apart(self) -> None:
        """Set those endings apart that would wait for the same row as others that are set apart already."""
        waiting = {group_of(each.ending): each for each in self._apart if each.shared}
        if waiting:
            endings, self._endings = self._endings, []
            for ending in endings:
                if (like := waiting.get(group_of(ending))) is None:
                    self._endings.append(ending)
                else:
                    if type(ending.outcome) is Done:
                        self._done[ending.claim.queue] -= 1
                    self._apart.append(replace(like, ending=ending))

    # -- news --------------------------------------------------------------------------------------------------

    def _written(
        self,
        batch: EndingBatch,
        again: Sequence[Apart],
        done: dict[str, int],
        due: set[tuple[str, float]],
        error: str | None,
    ) -> None:
        apart = [each.ending for each in batch.apart]
        ended = len(self._batch) - len(batch.left) - len(apart)
        self.ended += ended
        self._batch, self._bytes_under_way = [], 0
        if error is not None:  # a patient thread has none; but whatever happens, no ending is forgotten
            log(f"results could not be written: {error}", level=logging.ERROR)
            self._endings[:0] = batch.left
        elif ended:
            self._presence.is_back(written=True)
        undone = Counter(
            e.claim.queue for e in (*batch.stale, *batch.refused, *apart, *batch.left) if type(e.outcome) is Done
        )
        for queue, n in done.items():
            self._meter.completed(queue, n - undone[queue])
        self._meter.ended(batch.fates)
        for ending, status in batch.fates:
            if status is Status.DEAD and not isinstance(ending.outcome, Failed):
                _tell_death(ending)
        self._put_apart(batch.apart, again)
        for queue, seconds in due:
            self._again(queue, seconds)
        self._on_written()
        if batch.stale:
            first = batch.stale[0].claim
            which = f"{first.kind} {first.id}{' first' if len(batch.stale) > 1 else ''}"
            log(
                f"{counted(len(batch.stale), 'job')} had been taken away from here ({which}); endings dropped",
                level=logging.WARNING,
            )

    def _put_apart(self, found: Sequence[Apart], before: Sequence[Apart]) -> None:
        """Keep what could not be written, to be tried again: each time after a longer pause."""
        now, known = time.monotonic(), {id(each.ending): each for each in before}
        for each in found:
            each.wait_again(now, known.get(id(each.ending)))
        self._apart += found
        self._tell_of_apart(now)

    def _tell_of_apart(self, now: float) -> None:
        """Log, now and then, the ending that was set apart first, and how many others there are."""
        oldest = min(self._apart, key=lambda each: each.since, default=None)
        if oldest is None or (oldest.locked and now - oldest.since < TELL_AFTER) or not self._sometimes("apart", now):
            return
        claim, others = oldest.ending.claim, len(self._apart) - 1
        more = f" (and {others} more)" if others else ""
        what = f"the end of {claim.kind} {claim.id}{more} has waited {now - oldest.since:.0f} s to be written"
        log(f"{what}: {oldest.why}; it is tried again", claim.queue, logging.WARNING)

    def _tell_of_waiting(self) -> None:
        """Log, now and then, that the batch under way waits: on SQLite, for whoever writes to the file."""
        now = time.monotonic()
        if now - self._sent_at >= TELL_AFTER and self._batch and self._sometimes("waiting", now):
            claim, n = self._batch[0].claim, len(self._batch)
            first = f"{claim.kind} {claim.id}{' first' if n > 1 else ''}"
            ends = "end" if n == 1 else "ends"
            log(
                f"the {ends} of {counted(n, 'job')} ({first}) waited {now - self._sent_at:.0f} s to be written so far",
                claim.queue,
                logging.WARNING,
            )


def _tell(ending: Ending, what: str, why: str | None) -> None:
    claim, outcome = ending.claim, ending.outcome
    fields = {
        "job_id": str(claim.id),
        "kind": claim.kind,
        "queue": claim.queue,
        "attempt": claim.attempt,
        "error_type": outcome.error_type or type(outcome).__name__,
        "traceback": ending.traceback,
    }
    log(f"{claim.kind} {claim.id} {what}: {why}", claim.queue, logging.WARNING, **fields)


def _tell_death(ending: Ending) -> None:
    """Log that a job is dead, if the log did not say so when it failed for the last time."""
    outcome = ending.outcome
    assert isinstance(outcome, (Dead, Released))
    crashed = isinstance(outcome, Released) and outcome.crashed
    _tell(ending, "is dead, its worker died with it too often" if crashed else "is dead", outcome.message)


def without_payload(ending: Ending) -> Ending:
    """The same ending without the payload of its job: nobody needs that any more, and thousands of endings may wait to
    be written."""
    return ending._replace(claim=ending.claim._replace(payload=b""))


def _again(ending: Ending) -> str:
    """When the job is tried again, in words. Only the database knows whether its queue has a curve of its own."""
    return f"again in {abs(ending.delay):.1f} s{', or by its queue' if ending.delay < 0 else ''}"


def _due_in(ending: Ending) -> float | None:
    """Seconds until the job may run again. None if it does not, or if that is not known here."""
    match ending.outcome:
        case Released():
            return ending.delay
        case Failed() if ending.claim.attempt < ending.claim.max_attempts:
            return abs(ending.delay)
        case Snooze(seconds=seconds):
            return seconds
    return None
