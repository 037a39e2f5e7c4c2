"""Chains: jobs of one concurrency key that run one after the other in one worker, and share a slot of the key.

The last one has the slot in its row. So it is taken for as long as that one is claimed, and whatever happens here, that
must be longer than any other of them may run. They are sent to a worker together, which runs them in order, and then it
is so by itself. What a worker gives back goes back to the database; and an ending of the last one that is known before
all others have ended is kept here until they have. If only one is left, which may take long, it is handed the slot: the
last one need not wait for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from forge.job import Claim, Ending

__all__ = ["Chains", "HandOver"]

HandOver = tuple[Claim, Claim]  # from whom to whom


class Chain:
    """Those that have not ended."""

    __slots__ = ("asked", "last", "others")

    def __init__(self, claims: Sequence[Claim]) -> None:
        self.last = claims[-1]
        self.others = {claim.id: claim for claim in claims[:-1]}
        self.asked = False  # the slot is to be handed over


class Chains(dict[UUID, Chain]):
    """Those of a pod, by each of their jobs that has not ended."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[UUID, Ending] = {}  # of last ones, known too soon

    def add(self, claims: Sequence[Claim]) -> None:
        """Jobs that share a slot, in the order in which they are to run."""
        chain = Chain(claims)
        for claim in claims:
            self[claim.id] = chain

    def clear(self) -> None:
        """They are somebody else's now."""
        super().clear()
        self.kept.clear()

    def passed(self, endings: Iterable[Ending]) -> tuple[list[Ending], list[Ending]]:
        """(those of these that may be written now, those that were kept for want of them)"""
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
        """A slot that is to be given to the only other job that is left; each is told once."""
        for id_ in self.kept:
            chain = self[id_]
            if len(chain.others) == 1 and not chain.asked:
                chain.asked = True
                return chain.last, next(iter(chain.others.values()))
        return None

    def handed_over(self, last: Claim) -> list[Ending]:
        """It was. The ending that need not wait any more."""
        chain = self.get(last.id)
        if chain is None or chain.last.token != last.token or last.id not in self.kept:
            return []  # the other one has ended meanwhile
        for id_ in chain.others:
            self.pop(id_, None)  # it has the slot to itself
        return [self._freed(chain)]

    def apart(self, claims: Sequence[Claim]) -> tuple[Sequence[Claim], Sequence[Claim]]:
        """(those in no chain, those in one)"""
        if not self:
            return claims, ()
        return [c for c in claims if c.id not in self], [c for c in claims if c.id in self]
