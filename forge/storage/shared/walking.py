"""Claiming along lines: a claim is made of walks, and plain jobs have their turn among the lines."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence

from forge.errors import DatabaseError
from forge.job import Claim
from forge.storage.contract.lines import LineClaims, LineLevel, LineStore, Turn, Turns
from forge.storage.contract.storage import Storage
from forge.storage.contract.values import Incarnation
from forge.storage.shared.low_water import MOST_BYTES, LowWater, full, payload_bytes

__all__ = ["WalkedLines", "chains_of", "claim_in_turn", "steps_for"]

# Steps of one claim along its lines. A step is two looks into an index; a claim of few jobs looks at some lines all the
# same, to find the best priority among them.
LEAST_STEPS, MOST_STEPS = 32, 256
ROUNDS = 8  # statements that one claim is made of at most; whoever wants more asks again


class WalkedLines(LineStore):
    """A claim as walks, each in a transaction of its own, until there is enough or nothing more to be had."""

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
        turns = turns if turns is not None else Turns()
        left = None if allowed is None else dict(allowed)
        found = LineClaims([], {}, True)
        turns.closed, turns.seen = False, 1
        for _ in range(ROUNDS):
            try:
                room = (n - len(found.claims), most_bytes - payload_bytes(found.claims))
                turn = self._turn(who, queue, *room, (turns.after, turns.origin), left, behind)
            except DatabaseError:
                if found.claims:  # they are ours: whoever asks next will hear of it
                    return found
                raise
            found = found.add(turn, left)
            turns.note(turn)
            if full(found.claims, n, most_bytes):
                return found
            if turn.around and not turn.hungry:
                return found._replace(more=False)
        return found

    @abc.abstractmethod
    def _turn(
        self,
        who: Incarnation,
        queue: str,
        n: int,
        most_bytes: int,
        way: tuple[LineLevel, LineLevel],
        allowed: Mapping[str, int] | None,
        behind: int,
    ) -> Turn:
        """One walk of at most `steps_for(n)` steps, in a transaction of its own: from behind one level to the other,
        past the end of all lines if that is before; once around if they are the same."""


def chains_of(claims: Sequence[Claim], places: Sequence[tuple[str | None, int | None]]) -> list[list[Claim]]:
    """Those of the claims, in the order of turns, that have a key and place with others."""
    found: dict[tuple[str, int], list[Claim]] = {}
    for claim, (key, place) in zip(claims, places, strict=True):
        if key is not None and place is not None:
            found.setdefault((key, place), []).append(claim)
    return [chain for chain in found.values() if len(chain) > 1]


def steps_for(n: int) -> int:
    """How far a claim of n jobs walks along lines."""
    return min(max(n, LEAST_STEPS), MOST_STEPS)


def claim_in_turn(
    storage: Storage,
    who: Incarnation,
    queue: str,
    n: int,
    water: LowWater,
    turns: Turns,
    allowed: Mapping[str, int] | None = None,
    most_bytes: int = MOST_BYTES,
    behind: int = 1,
) -> LineClaims:
    """Claim up to n due jobs of a queue, plain ones and those of its lines: plain ones get the share of one line first,
    and at the end what the lines leave. Of bytes the plain ones get half first. `behind` is as in `LineStore.claim`."""
    first, half = turns.plain_share(n), -(-most_bytes // 2)
    found = storage.claim(who, queue, first, water, half) if first else []
    turns.plain_got(first, len(found))
    dry, taken = not full(found, first, half), LineClaims([], {}, True)

    def room() -> tuple[int, int]:
        return n - len(found), most_bytes - payload_bytes(found)

    try:
        if not full(found, n, most_bytes):
            left, bytes_left = room()
            taken = storage.lines.claim(who, queue, left, turns, allowed, bytes_left, behind)
            found += taken.claims
        if not full(found, n, most_bytes) and not dry:
            left, bytes_left = room()
            found += storage.claim(who, queue, left, water, bytes_left)
    except DatabaseError:
        if not found:  # else they are ours: whoever asks next will hear of it
            raise
    return LineClaims(found, taken.spent, taken.more or full(found, n, most_bytes), taken.chains)
