"""Rate budgets of the whole cluster: tokens are leased to pods in blocks, and spent there without asking anybody.

**Model.** A budget is a bucket of at most `capacity` tokens that refills with `refill_per_sec`, a row of the database.
A pod leases a block of them: they leave the bucket, and the pod's lease says how many it has. It spends them by itself;
with its next request, which tells how many it still has and how many it has spent since it was registered, the spent
ones leave the lease. A pod that has spent nothing for a second gives the others back. A lease ends after 5 s unless a
request renews it.

**The bound.** In any span of T seconds, all pods together are granted at most `capacity + refill_per_sec * T` tokens:
the burst is the capacity, whatever the number of pods, and whichever of them die, are stopped, or lose touch.

*Why.* Let B be the tokens in the bucket, L those of all leases, and U those that pods can still spend.

1. B + L <= capacity, always: refilling stops there. A request moves tokens between B and L, or takes spent ones out of
   L. Both are changed only under the lock of the bucket's row, and after it was refilled up to that moment.
2. U <= L, always. A pod has a token only after the lease with it was committed, and says that one is spent only after
   it is. A lease ends when it lapses, by the database's clock; its pod trusts it from before the request was sent, by
   its own monotonic clock, for nine tenths of that time. So a pod that was stopped wakes without tokens; one that was
   killed has none; and one that was taken for dead and goes on under another number has a lease of its own.
3. So B + U <= capacity at the start of any span. A token that is spent leaves B + U, nothing enters it but what is
   refilled, and that is `refill_per_sec * T` at most. What is spent is therefore at most the one plus the other.

That L counts is what makes this exact. A bucket that refilled to its capacity while pods sat on leased tokens would
allow these on top of it. And a lease that has lapsed gives back its *room*, not its tokens: nobody knows whether its
pod had spent them. Put back, they could be spent a second time within the span. They come back with the refill.

**Tokens in doubt.** A request whose answer was lost may have leased tokens that its pod never heard of. The next one
says what the pod has, and what is missing was never spent: it goes back into the bucket. Requests are numbered, and an
earlier one that arrives late changes nothing. If there is no next one, the lease lapses.

**Never stuck.** A dead pod takes room for 5 s at most; no token is lost for longer than its refill takes.

**Fair.** A pod asks for what is wanted of it now and what it has spent in the last second, and gets at most half the
capacity over the number of pods that have leases, unless it needs that much at once. So blocks adapt to each pod's
rate, the room for refill stays open, and no pod sits on what others wait for. Who got nothing asks again when there
should be enough, and the more pods there are the later: all of them together ask some 20 times a second.

**Drained.** The bucket is emptied and the leases are void from then on: their pods are told, and spend none of them
after they have heard it; if the word gets lost, after their next request, or at the end of the lease. Until then the
leases count as leased, so the bound holds.

**Clocks.** Only the span between two readings of one clock matters. Assumed: a pod's monotonic clock runs at most a
tenth slower than the database's (that of a machine that was put to sleep may have stood still). If the database's clock
is set forward, leases lapse and buckets refill by that much: the capacity may be spent once more. Set back, nothing is
refilled for that step, and leases begin anew. A failover that loses commits may lease what was leased. And a token is
spent when it is granted: what a handler does with it, and when, is its own affair.

**Reserved.** Tokens can be reserved for a moment, until it is known how many are needed: they count as leased until the
rest is given back, or for a quarter of a second. What is given back later counts as spent.

**Settings.** When a capacity is lowered, tokens already leased can still be spent.
"""

from __future__ import annotations

import math
import random
from collections import deque

from forge.storage.contract.budgets import LEASE, Ask, Grant, Limit

__all__ = ["Purse", "retry_after"]

TRUST = 9 / 10  # of a lease's time, for which a pod trusts it
SETTLE_AFTER = 1.0  # seconds without spending after which a pod gives back what it has
RESERVED = 0.25  # seconds after which reserved tokens count as spent
GAP = 0.05  # seconds between two requests of all pods together, while there is nothing to be had
SHORTEST_WAIT, LONGEST_WAIT = 1.0, 60.0  # seconds that who gets nothing is told to wait


def retry_after(limit: Limit | None) -> float:
    """Seconds after which somebody who got nothing should ask again."""
    return min(max(2 / limit.refill_per_sec, SHORTEST_WAIT), LONGEST_WAIT) if limit else SHORTEST_WAIT


class Purse:
    """One pod's lease of one budget: what it has, and when to ask for what. Pure: times are given, by a monotonic
    clock, and requests are made by others, one at a time."""

    def __init__(self, ttl: float = LEASE, trust: float = TRUST) -> None:
        self._ttl, self._trust = ttl, trust
        self.limit: Limit | None = None  # as last heard
        self.asking: Ask | None = None  # the request under way
        self._ask_at, self._short = 0.0, 0  # before that, so many more are not to be had
        self._held = 0
        self._reserved: deque[tuple[float, int]] = deque()  # when, and how many
        self._until = 0.0  # trusted until then
        self._spent = 0
        self._lease_until = -math.inf  # there may be a row with tokens until then
        self._void_before = -math.inf  # what requests begun before have brought is worth nothing
        self._moved_at = 0.0  # tokens last came or went
        self._second, self._now_spent, self._last_spent = 0, 0, 0  # for `recent`

    def held(self, now: float) -> int:
        """Tokens that can be spent now."""
        if now >= self._until:
            self._held = 0
        return self._held

    def take(self, n: int, now: float) -> bool:
        """Spend n tokens, if they are there."""
        if self.held(now) < n:
            return False
        self._held -= n
        self._count(n, now)
        return True

    def reserve(self, n: int, now: float) -> int:
        """Up to n tokens for a moment: to be followed by one `give_back`."""
        found = min(n, self.held(now))
        if found > 0:
            self._held -= found
            self._moved_at = now
            self._reserved.append((now, found))
        return found

    def give_back(self, n: int, now: float) -> None:
        """So many of those that were reserved first are not needed; the others are spent. What is not known to be
        reserved any more is not given back."""
        while self._reserved:
            _, reserved = self._reserved.popleft()
            back = min(n, reserved)
            self._count(reserved - back, now)
            if now < self._until:
                self._held += back
            n -= back
            if n <= 0:
                return

    def _count(self, n: int, now: float) -> None:
        """These are spent."""
        self._spent += n
        self._moved_at = now
        self._turn(now)
        self._now_spent += n

    def _claimed(self, now: float) -> int:
        """Tokens that are the pod's: those it has, and those reserved. Long reserved ones are spent."""
        while self._reserved and self._reserved[0][0] <= now - RESERVED:
            self._count(self._reserved.popleft()[1], now)
        return self._held + sum(n for _, n in self._reserved)

    def ask(self, least: int, all: int, now: float) -> Ask:
        """A request for more: all that is waited for, of which `least` would do for a start."""
        held = self.held(now)
        least = max(least - held, 1)
        claimed = self._claimed(now)  # first: it may find some spent
        return self._send(Ask(claimed, self._spent, least, max(all + self.recent(now) - held, least)))

    def ask_when(self, n: int) -> float:
        """Before that there are no n tokens to be had; 0 if there may be."""
        return self._ask_at if n - self._held >= self._short else 0.0

    @property
    def settle_at(self) -> float:
        """When to give back what is left, and say what was spent; never, if there is nothing."""
        at = max(min(self._moved_at + SETTLE_AFTER, self._until), self._ask_at)
        return at if at < self._lease_until and self.asking is None else math.inf

    def settle(self, now: float) -> Ask:
        """A request that ends the lease, but for what is reserved."""
        self._held = 0
        claimed = self._claimed(now)
        return self._send(Ask(claimed, self._spent, 0, 0))

    def _send(self, ask: Ask) -> Ask:
        self.asking = ask
        return ask

    def answered(self, grant: Grant, began: float, now: float) -> None:
        """What came of the request, which was begun then."""
        ask, self.asking = self.asking, None
        assert ask is not None
        self.limit, self._moved_at = grant.limit, now
        if grant.kept < ask.held:
            # The old lease is over, and what was spent of it meanwhile is not of this one.
            self._spent, self._held = ask.spent, 0
            self._reserved.clear()
        self.held(now)
        self._lease_until = now + self._ttl if grant.kept + grant.granted else -math.inf
        if began >= self._void_before:
            self._held += grant.granted
            self._until = began + self._ttl * self._trust
        self._ask_at = 0.0
        if grant.granted < ask.least <= grant.limit.capacity:
            wait = max((ask.least - grant.left) / grant.limit.refill_per_sec, GAP * grant.sharers)
            self._ask_at, self._short = now + min(wait, self._ttl) * random.uniform(1.0, 1.1), ask.least

    def failed(self, now: float) -> None:
        """The request may have been granted or not."""
        ask, self.asking = self.asking, None
        self._ask_at, self._short = now + random.uniform(0.5, 1.0), -1
        if ask is not None and ask.want:
            self._lease_until = now + self._ttl

    def drained(self, now: float) -> None:
        """The budget is empty, whatever was leased."""
        self._held, self._void_before = 0, now
        self._count(sum(n for _, n in self._reserved), now)
        self._reserved.clear()

    def _turn(self, now: float) -> None:
        second = int(now)
        if second != self._second:
            self._last_spent = self._now_spent if second == self._second + 1 else 0
            self._second, self._now_spent = second, 0

    def recent(self, now: float) -> int:
        """Tokens spent in the last second, about."""
        self._turn(now)
        return self._now_spent + round(self._last_spent * (1 - now % 1))
