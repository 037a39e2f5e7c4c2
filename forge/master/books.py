"""A pod's books: what it has claimed is with it, or has ended. If they do not balance, claims have got lost here, and
would stay in progress for as long as the pod lives: they are looked for in the database and given back.

All figures change on the loop, each job's in one step: between two steps they balance exactly, whatever is under way.
The look at the database reads all jobs, so it is made only if they do not. It goes by the thread that claims: what was
claimed before the question has come in by the time of the answer, and nothing is claimed in between.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence

from forge.job import Claim
from forge.master.finalizer import Finalizer
from forge.master.pod.log import counted, log
from forge.master.pod.presence import Presence
from forge.master.programs.programs import Programs
from forge.master.queues.claimer import Claimer
from forge.master.queues.local_queues import LocalQueues
from forge.master.queues.offers import Offers
from forge.storage import Storage
from forge.storage.contract import Incarnation

__all__ = ["Books"]

LOOK_EVERY = 3.0  # seconds between two looks at the books; both must find them wrong, and by as much
SEARCH_EVERY = 30.0  # seconds between two looks at the database


class Books:
    """Compares what was claimed, less what has ended, with what the pod holds. If they differ, it looks for lost
    claims."""

    def __init__(
        self,
        storage: Storage,
        presence: Presence,
        queues: LocalQueues,
        programs: Programs,
        claimer: Claimer,
        offers: Offers,
        finalizer: Finalizer,
    ) -> None:
        self._storage, self._presence, self._queues, self._programs = storage, presence, queues, programs
        self._claimer, self._offers, self._finalizer = claimer, offers, finalizer
        self._look_at = self._search_at = 0.0  # monotonic
        self._off: int | None = None  # at the last look: claims that are neither held nor ended
        self._accepted = 0  # so many of them are not in the database either
        self._searching = False

    def start_over(self) -> None:
        """The pod was reaped and is another one now: what it had claimed before is not looked for."""
        self._off, self._accepted = None, self._difference()

    def tick(self, now: float) -> None:
        """Look at the books, if it is time. If they were wrong twice by the same number, look for lost claims in the
        database."""
        if now < self._look_at or self._searching:
            return
        self._look_at = now + LOOK_EVERY
        before, self._off = self._off, self._difference()
        log(f"books: {self._claimer.claimed} claimed, {self._off - self._accepted} missing", level=logging.DEBUG)
        if self._off not in (self._accepted, None) and self._off == before and now >= self._search_at:
            self._search_at = now + SEARCH_EVERY
            self._search(self._presence.who, self._off)

    def _difference(self) -> int:
        held = self._finalizer.unwritten + self._programs.in_hand
        held += sum(queue.claim_count for queue in self._queues.staffed)
        return self._claimer.claimed - self._finalizer.ended - held

    def _held(self) -> Iterator[Claim]:
        yield from self._finalizer.held()
        yield from self._programs.held()
        for queue in self._queues.staffed:
            yield from queue.claims()

    def _search(self, who: Incarnation, off: int) -> None:
        # Held now, though it may have ended by the time of the answer; or offered, and taken meanwhile.
        ours, offered = {(c.id, c.token) for c in self._held()}, self._offers.tokens()

        def found(claims: Sequence[Claim] | None, error: str | None) -> None:
            self._searching = False
            if error is not None or who is not self._presence.who:
                return  # the next look finds them wrong again
            known = ours | {(c.id, c.token) for c in self._held()}
            in_doubt = offered | self._offers.tokens() | who.doubtful.keys()
            strays = [c for c in claims or () if (c.id, c.token) not in known and c.token not in in_doubt]
            self._accepted = off - len(strays)
            self._give_back(strays)

        self._searching = True
        self._claimer.thread.send(lambda: self._storage.claims_of(who.pod.id), found)

    def _give_back(self, strays: Sequence[Claim]) -> None:
        if not strays:
            return
        which = f"{strays[0].id} of queue {strays[0].queue}{' first' if len(strays) > 1 else ''}"
        log(
            f"{counted(len(strays), 'job')} had been claimed by this pod and got lost here ({which}); given back",
            level=logging.WARNING,
        )
        self._finalizer.release(strays)
