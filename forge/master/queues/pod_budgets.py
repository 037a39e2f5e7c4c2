"""This pod's part of the budgets that all pods share: `ctx.rate_limit.acquire("slack")` ends up here, and so do tasks
that declare a limit. `forge.cluster.budgets` says what holds.

On the loop: what is there is given at once, for anything else a thread asks the database, and whoever waits is
answered when it is back.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections.abc import Callable, Mapping
from typing import NamedTuple

from forge.cluster.budgets import Purse, retry_after
from forge.config import LimitConfig, suggest
from forge.master.database_threads import DatabaseThread
from forge.master.news import Post
from forge.master.pod.log import Sometimes, log
from forge.master.pod.presence import Presence
from forge.storage import Storage
from forge.storage.contract.budgets import Ask, Grant, Limit

__all__ = ["DEFAULTS", "PodBudgets"]

# Those of services that everybody uses, where `[limits]` says nothing else.
DEFAULTS = {"slack": Limit(50, 50 / 60), "gh": Limit(5000, 5000 / 3600)}

AHEAD = 10  # tokens more than it has spent in the last second that are fetched for who could reserve none

# What `acquire` answers: None if the tokens were granted, else the seconds after which to ask again; or an error.
Reply = Callable[[float | None, str | None], None]
Answer = tuple[float, Grant | None]  # when the request was begun, and what came of it


class Waiting(NamedTuple):
    """A handler that waits for tokens."""

    tokens: int
    reply: Reply


class Scope:
    """One budget as far as this pod uses it."""

    def __init__(self) -> None:
        self.purse = Purse()
        self.waiting: list[Waiting] = []
        self.reserving = 0  # tokens that `reserve` could not give
        self.declared: Limit | None = None  # what the database has been told
        self.drain = False  # it has not been told of a drain yet
        self.unknown = False  # there was no such budget

    @property
    def due(self) -> float:
        """When the database must be asked about it (monotonic)."""
        if self.purse.asking is not None:
            return math.inf
        return min(self.purse.ask_when(1) if self.reserving else math.inf, self.purse.settle_at)


class PodBudgets:
    """All budgets that this pod uses."""

    def __init__(
        self,
        storage: Storage,
        post: Post,
        presence: Presence,
        limits: Mapping[str, LimitConfig],
        tokens_came: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`tokens_came` is told the name of a budget when there may be some for who could not reserve any."""
        self._storage, self._presence, self._tokens_came, self._clock = storage, presence, tokens_came, clock
        self._thread = DatabaseThread("budgets", post, patient=False)
        self._scopes: dict[str, Scope] = {}
        self._who = getattr(presence, "who", None)  # not registered yet
        self._sometimes = Sometimes(60.0)
        self.due = 0.0  # monotonic: `tick` then
        self._limits: dict[str, Limit] = {}
        self._changed = False
        self.change(limits)

    def change(self, limits: Mapping[str, LimitConfig]) -> None:
        """Put other settings in force. Budgets that the settings name are told to the database at the next tick, those
        of `DEFAULTS` when they are used."""
        self._limits = {name: Limit(each.capacity, each.refill_per_sec) for name, each in limits.items()}
        self._changed, self.due = True, 0.0

    # -- for handlers ------------------------------------------------------------------------------------------

    def acquire(self, name: str, tokens: int, reply: Reply) -> None:
        """Take tokens for a handler. `reply` is called now, or when the database has answered."""
        scope, now = self._scope(name), self._clock()
        if tokens < 1 or _too_many(scope.purse.limit, tokens):
            reply(*self._refusal(name, scope, tokens))
        elif not scope.waiting and scope.purse.take(tokens, now):
            reply(None, None)
            self._plan(scope)
        elif now < scope.purse.ask_when(tokens) and scope.purse.asking is None and not scope.unknown:
            reply(*self._refusal(name, scope, tokens))
        else:
            scope.waiting.append(Waiting(tokens, reply))
            self._ask(name, scope, now)

    def drain(self, name: str, reply: Reply) -> None:
        """A handler says that the other side has nothing left of this budget. `reply` is called when the database has
        been told, from which other pods learn it."""
        scope = self._scope(name)
        scope.purse.drained(self._clock())
        scope.drain = True

        def told(known: bool | None, error: str | None) -> None:
            # An outage need not end the handler's job: nothing is left here, and the others are told with the next ask.
            reply(None, None if error is not None or known else self._unknown(name))

        self._send(lambda: self._drained(name, scope), told)

    def _drained(self, name: str, scope: Scope) -> bool:
        """Tell the database of a drain. On the budgets' thread."""
        self._declare(name, scope)
        known = self._storage.budgets.drain(name)
        scope.drain = False
        return known

    # -- for tasks with a declared limit -----------------------------------------------------------------------

    def reserve(self, name: str, n: int) -> int:
        """Take up to n tokens that are here now. Returns how many. If there were some, `give_back` must be called once
        it is known how many are not needed, even if that is none. If there were none, `tokens_came` is called when some
        have come."""
        scope, now = self._scope(name), self._clock()
        found = scope.purse.reserve(n, now) if not scope.waiting else 0
        if found < min(n, max(1, scope.purse.recent(now))):
            scope.reserving = max(scope.reserving, n - found)
            if now >= scope.purse.ask_when(1):
                self._ask(name, scope, now)
        self._plan(scope)
        return found

    def give_back(self, name: str, n: int) -> None:
        """Give back so many of the tokens that were reserved; the others are spent now."""
        scope = self._scope(name)
        scope.purse.give_back(n, self._clock())
        self._plan(scope)

    # -- what time and others bring ----------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Tell the database of settings, ask for what somebody waits for, give back what nobody needs."""
        if now < self.due:
            return
        self._start_over()
        if self._changed:
            self._changed = False
            for name in self._limits:
                self._send(functools.partial(self._declare, name, self._scope(name)), self._noted)
        for name, scope in self._scopes.items():
            if now >= scope.due:
                if scope.reserving and now >= scope.purse.ask_when(1):
                    self._ask(name, scope, now)
                else:
                    self._request(name, scope, scope.purse.settle(now))
        self.due = min((scope.due for scope in self._scopes.values()), default=math.inf)

    def drained(self, name: str) -> None:
        """Another pod has drained this budget: spend none of its tokens any more."""
        if name in self._scopes:
            self._scopes[name].purse.drained(self._clock())

    def leave(self) -> None:
        """Give the tokens back, before the pod leaves. Waits for the database, on the loop, which has nothing else to
        do then."""
        for name, scope in self._scopes.items():
            if scope.purse.settle_at < math.inf:
                self._storage.budgets.lease(self._presence.who, name, scope.purse.settle(self._clock()))

    # -- asking ------------------------------------------------------------------------------------------------

    def _scope(self, name: str) -> Scope:
        self._start_over()
        scope = self._scopes.get(name)
        if scope is None:
            scope = self._scopes[name] = Scope()
        return scope

    def _start_over(self) -> None:
        """A pod that had been taken for dead is another one, and has no leases. Its workers are gone too."""
        if (who := self._presence.who) is not self._who:
            if self._who is not None:
                self._scopes.clear()
            self._who = who

    def _plan(self, scope: Scope) -> None:
        self.due = min(self.due, scope.due)

    def _send(self, errand: Callable[[], object], then: Callable[..., None]) -> None:
        if not self._thread.is_alive():
            self._thread.start()
        self._thread.send(errand, then)

    def _ask(self, name: str, scope: Scope, now: float) -> None:
        """Ask for tokens for all who wait. If a request is under way they are asked for when it is answered."""
        if scope.purse.asking is None:
            needs = [each.tokens for each in scope.waiting]
            least = 1 if scope.reserving else min(needs)
            self._request(name, scope, scope.purse.ask(least, sum(needs) + min(scope.reserving, AHEAD), now))

    def _request(self, name: str, scope: Scope, ask: Ask) -> None:
        who = self._presence.who

        def errand() -> Answer:
            began = self._clock()
            if scope.drain:
                self._drained(name, scope)
            self._declare(name, scope)
            return began, self._storage.budgets.lease(who, name, ask)

        self._send(errand, lambda answer, error: self._came(name, scope, answer, error))

    def _declare(self, name: str, scope: Scope) -> None:
        """Tell the database of this pod's setting of a budget, if it has not been told. On the budgets' thread."""
        limit = self._limits.get(name) or DEFAULTS.get(name)
        if limit is None or scope.declared == limit:
            return
        before = self._storage.budgets.declare(name, limit, default=name not in self._limits)
        scope.declared = limit
        if before is not None:
            log(
                f"budget {name}: {_words(limit)}, by the settings of this pod; it was {_words(before)}",
                level=logging.WARNING,
            )

    def _came(self, name: str, scope: Scope, answer: Answer | None, error: str | None) -> None:
        if self._scopes.get(name) is not scope:
            return  # the pod is another one now
        now = self._clock()
        if answer is None:
            scope.purse.failed(now)
            if error is not None and self._sometimes(error, now):
                log(f"budget {name}: {error}", level=logging.WARNING)
        elif answer[1] is None:
            self._missing(name, scope, now)
        else:
            scope.unknown = False
            scope.purse.answered(answer[1], answer[0], now)
        self._serve(name, scope, now)

    def _missing(self, name: str, scope: Scope, now: float) -> None:
        """There is no such budget: say so to handlers that wait. Jobs that wait for its tokens go on waiting, for
        somebody may make it."""
        scope.unknown = True
        scope.purse.failed(now)
        waiting, scope.waiting = scope.waiting, []
        for each in waiting:
            each.reply(None, self._unknown(name))
        if not scope.reserving:
            del self._scopes[name]  # names are handlers' own: there may be any number
        elif self._sometimes(name, now):
            log(f"jobs wait for tokens: {self._unknown(name)}", level=logging.ERROR)

    def _serve(self, name: str, scope: Scope, now: float) -> None:
        """Give what there is to the handlers that wait, in their order; the others wait on, or are told when to ask
        again."""
        waiting, scope.waiting = scope.waiting, []
        for each in waiting:
            if scope.purse.take(each.tokens, now):
                each.reply(None, None)
            elif now < scope.purse.ask_when(each.tokens) or _too_many(scope.purse.limit, each.tokens):
                each.reply(*self._refusal(name, scope, each.tokens))
            else:
                scope.waiting.append(each)
        if scope.waiting:
            self._ask(name, scope, now)
        if scope.reserving and scope.purse.held(now):
            scope.reserving = 0
            self._tokens_came(name)
        self._plan(scope)

    def _refusal(self, name: str, scope: Scope, tokens: int) -> tuple[float | None, str | None]:
        limit = scope.purse.limit
        if tokens < 1 or _too_many(limit, tokens):
            most = f" to {limit.capacity}" if limit else ""
            return None, f"{name}: from 1{most} tokens can be acquired, not {tokens}"
        return retry_after(limit), None

    def _unknown(self, name: str) -> str:
        near = suggest(name, {**DEFAULTS, **self._limits})
        return f"no budget {name}{near}; add [limits.{name}] to forge.toml, or: forge budgets set {name}"

    def _noted(self, _: object, error: str | None) -> None:
        if error is not None and self._sometimes(error, self._clock()):
            log(f"budgets could not be stored: {error}", level=logging.WARNING)


def _too_many(limit: Limit | None, tokens: int) -> bool:
    return limit is not None and tokens > limit.capacity


def _words(limit: Limit) -> str:
    return f"{limit.capacity} tokens and {limit.refill_per_sec:g}/s"
