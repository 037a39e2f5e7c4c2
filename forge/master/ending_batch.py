"""A batch of endings on its way into the database, divided until all that can be written are.

If the database refuses an ending, although it takes others, the job has failed instead. If it had a result its work is
done: then it is dead, or done without the result. What somebody else has locked is set apart, and so is what cannot be
written even so. If the database is away, or takes no writes, all of it is for later.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from forge.codec import as_text
from forge.errors import DatabaseError
from forge.job import Done, Ending, Failed, unstorable
from forge.master.database_threads import LONGEST_PAUSE
from forge.master.pod.meter import Meter
from forge.storage import Storage
from forge.storage.contract import Fates, RowsLocked

__all__ = ["TELL_AFTER", "Apart", "EndingBatch", "group_of"]

TRIES = 3  # refusals of a lone ending by a database that takes others, before the ending is to blame
PAUSE = 60.0  # seconds until a job whose result cannot be stored is tried again
LOCK_WAIT = 0.2  # seconds to wait for a row that somebody else has locked, with all that is to be written beside it
LOCK_WAIT_AGAIN = 0.02  # seconds to wait, once a batch has met a lock: it only has to find out which endings need it
# How often a batch may wait without learning which rows of a group are locked: then it is something that they share.
MOST_WAITS = 4
# How often it may wait at all. Everybody else waits meanwhile: what may need rows of somebody else is for later then.
MOST_WAITS_IN_ALL = 40
FIRST_PAUSE = 0.25  # seconds until what was set apart is tried again
TELL_AFTER = 5.0  # seconds after which it is told that endings wait
_LOCKED = "somebody has locked its row"
_NEEDED = "somebody has locked what it needs"

_NOTHING: frozenset[str] = frozenset()

Group = tuple[str, bool, frozenset[str]]


@dataclass(slots=True, eq=False)
class Apart:
    """An ending that cannot be written now, although others can."""

    ending: Ending
    why: str  # for people
    locked: bool  # somebody has locked its row, or one that it needs
    shared: bool  # the locked row is one that others of its group need too
    since: float  # monotonic
    tried: bool = True  # False: there was no time to
    at: float = 0.0  # monotonic: when to try again
    pause: float = FIRST_PAUSE  # seconds from one try to the next

    def wait_again(self, now: float, earlier: Apart | None) -> None:
        """Set when to try again. `earlier` is the same ending when it was set apart before: each try that fails doubles
        the pause."""
        if earlier is not None:
            self.since = earlier.since
            self.pause = min(earlier.pause * 2, LONGEST_PAUSE) if self.tried else earlier.pause
        self.at = now + self.pause


class EndingBatch:
    """Endings to be written. Call it until it returns: an exception means that the database could not be used, and that
    the rest is still to be written."""

    def __init__(
        self,
        storage: Storage,
        endings: Sequence[Ending],
        max_crashes: int,
        meter: Meter | None = None,
        again: Sequence[Apart] = (),
    ) -> None:
        """`again` are endings that were set apart before. They are looked at first, so that those that are still locked
        cost nothing."""
        self._storage, self._max_crashes, self._meter = storage, max_crashes, meter or Meter()
        self.fates: Fates = []
        self.refused: list[Ending] = []  # that could not be written: their jobs have failed instead
        self.apart: list[Apart] = []
        self.stale: list[Ending] = []
        self._todo = [list(endings)] if endings else []
        self._again = list(again)
        self._substitutes: set[int] = set()  # by identity: endings that stand for refused ones
        self._refusals: Counter[int] = Counter()  # by identity: refusals of an ending alone
        self._waits = 0
        self._perhaps = ""  # who may hold what those need that were set apart for long

    @property
    def left(self) -> list[Ending]:
        """Endings that are neither written nor set apart yet."""
        return [*(ending for part in self._todo for ending in part), *(each.ending for each in self._again)]

    def __call__(self) -> None:
        """Write all endings, or set them apart."""
        self._look_again()
        while self._todo:
            part, began = self._todo[-1], time.monotonic()
            try:
                wait = LOCK_WAIT_AGAIN if self._waits else LOCK_WAIT
                stale = self._storage.finalize(part, max_crashes=self._max_crashes, fates=self.fates, lock_wait=wait)
            except RowsLocked:
                self._locked(part)
            except Exception as e:  # noqa: BLE001 (whatever it is, it is about this part or about the database)
                self._refused(part, e)
            else:
                self._meter.took("finalizes", began)
                self.stale += stale
                self._todo.pop()

    # -- locks -------------------------------------------------------------------------------------------------

    def _look_again(self) -> None:
        """Write what was set apart, if it can be: those that were locked together, the others each by itself."""
        if not self._again:
            return
        locked = {id(ending) for ending in self._storage.locked([each.ending for each in self._again])}
        still = [each for each in self._again if id(each.ending) in locked]
        free = [each for each in self._again if id(each.ending) not in locked]
        if still:
            oldest = min(still, key=_since)
            oldest.why = _LOCKED + self._whom(" by ", oldest)
        if shared := [each for each in free if each.shared]:
            self._waits = MOST_WAITS  # one more is enough to know that it is still locked
            self._perhaps = self._whom(", ", min(shared, key=_since))
        self.apart, self._again = still, []
        # Those that were not tried the last time come first, which is last in the list.
        self._todo += _grouped(each.ending for each in sorted(free, key=_untried) if each.locked)
        for each in free:
            if not each.locked:
                self._todo.append([each.ending])
                self._substitutes.add(id(each.ending))

    def _whom(self, word: str, oldest: Apart) -> str:
        """Who has locked its row, in words that begin with `word`. Empty if that is not known, or if the lock is too
        new to be told of."""
        told = time.monotonic() - oldest.since >= TELL_AFTER
        holder = self._storage.lock_holder(oldest.ending.claim) if told else None
        return f"{word}{holder}" if holder else ""

    def _locked(self, part: list[Ending]) -> None:
        """Set endings apart whose rows are locked; the others are tried again. If none of their own rows is locked it
        is another's row that one group needs: find that group by dividing, and within it those who do not need the row,
        but not for long."""
        locked = {id(ending) for ending in self._storage.locked(part)}
        free = [ending for ending in part if id(ending) not in locked]
        self._todo.pop()
        if locked:
            self._set_apart([ending for ending in part if id(ending) in locked], _LOCKED, locked=True)
            self._todo += [free] if free else []
            return
        self._waits += 1
        if self._waits > MOST_WAITS_IN_ALL and any(_needs(ending) for ending in part):
            self._todo.append(part)
            self._put_off()
            return
        groups = {group_of(ending) for ending in part}
        if len(groups) > 1 or (self._waits <= MOST_WAITS and len(part) > 1):
            self._todo += _divided(part)
            return
        alike = [e for other in self._todo for e in other if group_of(e) in groups]
        self._set_apart(part + alike, _NEEDED + self._perhaps, locked=True, shared=True)
        self._todo = [kept for other in self._todo if (kept := [e for e in other if group_of(e) not in groups])]

    def _put_off(self) -> None:
        """Set apart, without a try, every ending that may need rows of somebody else."""
        for other in self._todo:
            self._set_apart([e for e in other if _needs(e)], _NEEDED, locked=True, shared=True, tried=False)
        self._todo = [kept for other in self._todo if (kept := [e for e in other if not _needs(e)])]

    def _set_apart(
        self, endings: Iterable[Ending], why: str, *, locked: bool, shared: bool = False, tried: bool = True
    ) -> None:
        now = time.monotonic()
        self.apart += [Apart(ending, why, locked, shared, now, tried) for ending in endings]

    # -- refusals ----------------------------------------------------------------------------------------------

    def _refused(self, part: list[Ending], error: Exception) -> None:
        self._check_database(_size(part[0]) if len(part) == 1 else 0)
        if len(part) > 1:
            self._todo.pop()
            self._todo += _divided(part)
            return
        (ending,), said = part, as_text(str(error), 500)
        self._refusals[id(ending)] += 1
        if self._refusals[id(ending)] < TRIES:
            return  # the database may have come back between the refusal and the check: once more
        self._todo.pop()
        if id(ending) in self._substitutes:
            self._set_apart(part, f"the database refuses it: {said}", locked=False)
            return
        substitute = _substitute(ending, said)
        if not isinstance(substitute.outcome, Done):
            self._substitutes.add(id(substitute))
            self.refused.append(ending)
        self._todo.append([substitute])

    def _check_database(self, size: int) -> None:
        """Raise if the ending is not to blame: the database is away, or refuses what has nothing to do with it."""
        self._storage.now()
        try:
            self._storage.try_writing(size)
        except Exception as e:
            raise DatabaseError(f"the database refuses writes: {e}") from e


def _substitute(ending: Ending, why: str) -> Ending:
    """What is written instead of an ending that the database refuses. A job with a result had done its work, and is not
    run again."""
    if isinstance(ending.outcome, Done) and ending.result is not None:
        if ending.outcome.spare_result:
            return ending._replace(result=None)
        return Ending(ending.claim, unstorable(why, "its work was done, but the database refuses its result"))
    return Ending(ending.claim, Failed(f"the result could not be stored: {why}"), PAUSE)


def _divided(part: list[Ending]) -> list[list[Ending]]:
    """The endings in two halves, with no group in both of them if there are several groups. The last half is tried
    first."""
    groups = _grouped(part)
    if len(groups) > 1:
        middle = len(groups) // 2
        return [[e for group in half for e in group] for half in (groups[middle:], groups[:middle])]
    middle = len(part) // 2
    return [part[middle:], part[:middle]]


def _grouped(endings: Iterable[Ending]) -> list[list[Ending]]:
    found: dict[Group, list[Ending]] = {}
    for ending in endings:
        found.setdefault(group_of(ending), []).append(ending)
    return list(found.values())


def group_of(ending: Ending) -> Group:
    """Endings of one group may all need the same row: that of their queue, or of a key of their follow-up jobs."""
    return ending.claim.queue, type(ending.outcome) is Done, _needs(ending)


def _needs(ending: Ending) -> frozenset[str]:
    """What its follow-up jobs need that others may hold: keys, which somebody may be about to store, and queues that
    have had no lines so far."""
    if not ending.children:
        return _NOTHING
    keys = (f"key {job.dedupe_key}" for job in ending.children if job.dedupe_key is not None)
    return frozenset(keys) | {f"queue {job.queue}" for job in ending.children if job.line is not None}


def _since(apart: Apart) -> float:
    return apart.since


def _untried(apart: Apart) -> bool:
    return not apart.tried


def _size(ending: Ending) -> int:
    """About how many bytes the largest value of the ending has."""
    children = max((len(job.payload) for job in ending.children), default=0)
    return max(len(ending.result or b""), len(ending.traceback or ""), children)
