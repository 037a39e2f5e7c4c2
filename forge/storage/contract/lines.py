"""Jobs in lines: limits on how many run at once, budgets, and turns between those who would take it all.

A job belongs to a line if it has a concurrency key, a partition or a budget; every job of a line has the same ones,
so a line is open or closed as a whole. Lines of a queue take turns, and its plain jobs take theirs as one more line.
Within a line jobs go by (priority, run_at, id).

How many claims of a key there are is nowhere counted: each has a place, a number from 1 to the limit, in its own row,
and no two may have the same. So no path on which a claim ends can keep its place, and none can go beyond the limit.

Who claims may have several jobs share a place, a chain: it runs them one after the other, and ends the last, which has
the place in its row, after all others. What is to be ended before these is handed over to one of them first.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import NamedTuple

from forge.job import Claim
from forge.storage.contract.values import Incarnation
from forge.storage.shared.low_water import MOST_BYTES

__all__ = ["FIRST", "LineClaims", "LineLevel", "LineStore", "Turn", "Turns"]

LineLevel = tuple[str, int]  # a line, and a priority in it
FIRST: LineLevel = ("", -32_768)  # before all lines


class Turns:
    """Whose turn it is at the next claim of a queue, and what the last one met. Each dispatcher keeps one per queue."""

    __slots__ = ("after", "closed", "origin", "owed", "scopes", "seen")

    def __init__(self) -> None:
        self.after = FIRST  # the next walk starts behind it,
        self.origin = FIRST  # and has come around when it is here: since then nothing was found
        self.closed = False  # a line cannot go on, or perhaps not: for want of a place, or of tokens
        self.scopes: frozenset[str] = frozenset()  # budgets that lines of this queue want tokens of
        self.seen = 1  # lines with due jobs
        self.owed = 0.0  # jobs that the plain ones may have before the others

    def plain_share(self, n: int) -> int:
        """Of n jobs that can be claimed, how many the plain ones may have first: those of one line among others."""
        self.owed = min(self.owed + n / (self.seen + 1), float(n))
        return int(self.owed)

    def plain_got(self, asked: int, got: int) -> None:
        """So many of them came. Who has nothing waiting saves nothing up."""
        self.owed = self.owed - got if got == asked else 0.0

    def start_over(self) -> None:
        """Something has changed: lines that were closed may be open."""
        self.origin = self.after

    def note(self, turn: Turn) -> None:
        """A walk has ended."""
        self.after = turn.after or self.after
        if turn.claims or turn.around:
            self.origin = self.after
        self.scopes |= turn.empty | turn.spent.keys()
        self.closed |= turn.closed
        self.seen = max(self.seen, turn.seen)


class Turn(NamedTuple):
    """What one walk along lines came to."""

    claims: list[Claim]
    spent: Mapping[str, int]  # tokens by budget
    after: LineLevel | None  # where the next one starts; None: where this one did
    around: bool  # it saw all lines that it had to
    empty: frozenset[str]  # budgets without a token that lines want one of
    closed: bool  # some line could not go on, or may not be able to now
    seen: int  # lines with due jobs
    hungry: bool  # some line had its whole share, and may have more
    chains: list[list[Claim]]  # those of the claims that share a place, in the order in which they are to run


class LineClaims(NamedTuple):
    """What a claim of lines came to."""

    claims: list[Claim]
    spent: dict[str, int]  # tokens by budget
    more: bool  # there may be more, or not all lines have been looked at
    chains: tuple[list[Claim], ...] = ()  # those of the claims that share a place, in the order in which to run them

    def add(self, turn: Turn, left: dict[str, int] | None) -> LineClaims:
        """With what one more walk has brought; what it has spent is no longer left."""
        self.claims.extend(turn.claims)
        for scope, tokens in turn.spent.items():
            self.spent[scope] = self.spent.get(scope, 0) + tokens
            if left is not None:
                left[scope] -= tokens
        return self._replace(chains=(*self.chains, *turn.chains)) if turn.chains else self


class LineStore(abc.ABC):
    """A storage's verbs about lines: `storage.lines`."""

    @abc.abstractmethod
    def claim(
        self,
        who: Incarnation,
        queue: str,
        n: int,
        turns: Turns | None = None,
        allowed: Mapping[str, int] | None = None,
        most_bytes: int = MOST_BYTES,
        behind: int = 1,
    ) -> LineClaims:
        """Claim up to n due jobs of a queue's lines, each line its share, in order (priority, run_at, id) within each.

        Lines with a budget get as many as `allowed` has tokens for, and none of a budget that it does not name; without
        it budgets are not heeded. None while the queue is paused or cooling down. `most_bytes` is as in
        `Storage.claim`. Up to `behind` jobs share a place of their key: of each of the answer's `chains` no two may run
        at once, and the last may be ended when all others have been, or `hand_over` has been called."""

    @abc.abstractmethod
    def hand_over(self, last: Claim, heir: Claim) -> bool:
        """Give the place that the last job of a chain has to another one of the same chain. False: that could not be,
        for one of the two is not what it was."""

    @abc.abstractmethod
    def queues(self) -> set[str]:
        """Queues in which there are, or have been, jobs in lines."""
