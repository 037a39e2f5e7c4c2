"""Chains: jobs of one concurrency key that run one after the other in one worker, and share a place of the key.

The last one has the place in its row. So it is taken for as long as that one is claimed, and whatever happens here,
that must be longer than any other of them may run. They are sent to a worker together, which runs them in order, and
then it is so by itself. What a worker gives back goes back to the database; and an ending of the last one that is known
before all others have ended is kept here until they have. If only one is left, which may take long, the place is handed
over to it, and the last one need not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from forge.job import Claim, Ending

__all__ = ["Chains", "HandOver"]

HandOver = tuple[Claim, Claim]  # the job that gives its place, and the one that gets it


class Chain:
    """The jobs of one chain that have not ended."""

    __slots__ = ("asked", "last", "others")

    def __init__(self, claims: Sequence[Claim]) -> None:
        self.last = claims[-1]
        self.others = {claim.id: claim for claim in claims[:-1]}
        self.asked = False  # the place is to be handed over


class Chains(dict[UUID, Chain]):
    """The chains of a pod. Maps the id of each of their jobs that has not ended to its chain."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[UUID, Ending] = {}  # by id: endings of last jobs that wait for the others of their chain

    def add(self, claims: Sequence[Claim]) -> None:
        """A new chain: jobs that share a place, in the order in which they are to run."""
        chain = Chain(claims)
        for claim in claims:
            self[claim.id] = chain

    def clear(self) -> None:
        """Forget all chains: their jobs are another pod's now."""
        super().clear()
        self.kept.clear()

    def passed(self, endings: Iterable[Ending]) -> tuple[list[Ending], list[Ending]]:
        """Returns two lists: which of these endings may be written now, and which kept ones they were waited for by."""
        passed, freed = [], []
        for ending in endings:
            chain = self.pop(id_ := ending.claim.id, None)
            if chain is not None:
                if id_ != chain.last.id:
                    del chain.others[id_]
                    if not chain.others and chain.last.id in self.kept:
                        freed.append(self._freed(chain))
                elif chain.others:
                    self[id_], self.kept[id_] = chain, ending
                    continue
            passed.append(ending)
        return passed, freed

    def _freed(self, chain: Chain) -> Ending:
        self.pop(chain.last.id, None)
        return self.kept.pop(chain.last.id)

    def hand_over(self) -> HandOver | None:
        """The next place that is to be handed over, from a last job that has ended to the only other job that is left
        of its chain; None if there is none. Each is returned once."""
        for id_ in self.kept:
            chain = self[id_]
            if len(chain.others) == 1 and not chain.asked:
                chain.asked = True
                return chain.last, next(iter(chain.others.values()))
        return None

    def handed_over(self, last: Claim) -> list[Ending]:
        """The place of this job was handed over. Returns its ending, which need not wait any more."""
        chain = self.get(last.id)
        if chain is None or chain.last.token != last.token or last.id not in self.kept:
            return []  # the other one has ended meanwhile
        for id_ in chain.others:
            self.pop(id_, None)  # it has the place to itself
        return [self._freed(chain)]

    def apart(self, claims: Sequence[Claim]) -> tuple[Sequence[Claim], Sequence[Claim]]:
        """Divide claims: those in no chain, and those in one."""
        if not self:
            return claims, ()
        return [c for c in claims if c.id not in self], [c for c in claims if c.id in self]
