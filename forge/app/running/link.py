"""Who runs a job, as its context sees it; what it can be asked; and budgets, which are such questions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from forge.codec import check_name
from forge.errors import UsageError
from forge.job import Claim, NewJob, Receipt, Throttled

__all__ = ["Link", "PendingAnswer", "Permit", "RateLimit"]

T = TypeVar("T")


class Link(Protocol):
    """Who runs a job, as its context sees it. Answers come as futures, to be waited for or awaited."""

    stopping: bool  # the pod is: its time to end jobs runs

    def enqueue(self, claim: Claim, jobs: list[NewJob]) -> Future[list[Receipt]]:
        """Store jobs now, whatever becomes of this one."""
        ...

    def acquire(self, claim: Claim, scope: str, tokens: int) -> Future[float | None]:
        """Take tokens of a budget: None if they were there, else the seconds to wait before asking again."""
        ...

    def drain(self, scope: str) -> Future[None]:
        """Empty a budget."""
        ...

    def progress(self, claim: Claim, percent: float, message: str | None) -> None:
        """Make known how far it is."""
        ...


class PendingAnswer(Generic[T]):
    """A question on its way: one piece of code for callers that wait and for those that await."""

    __slots__ = ("_future", "_read")

    def __init__(self, future: Future[Any], read: Callable[[Any], T]) -> None:
        self._future, self._read = future, read

    def wait(self) -> T:
        return self._read(self._future.result())

    async def awaited(self) -> T:
        return self._read(await asyncio.wrap_future(self._future))


@dataclass(frozen=True, slots=True)
class Permit:
    """What `rate_limit.acquire` answers; true if the tokens were granted."""

    retry_after: float | None = None  # seconds until it is worth asking again; None: granted

    @property
    def throttled(self) -> bool:
        """The budget had too few tokens."""
        return self.retry_after is not None

    def __bool__(self) -> bool:
        return self.retry_after is None

    def raise_if_throttled(self) -> None:
        """End the job as `Throttled`: it runs again later, and its attempt is refunded."""
        if self.retry_after is not None:
            raise Throttled(self.retry_after)


class RateLimit:
    """`ctx.rate_limit`: budgets that all pods share."""

    __slots__ = ("_claim", "_link")

    def __init__(self, claim: Claim, link: Link) -> None:
        self._claim, self._link = claim, link

    def acquire(self, scope: str, tokens: int = 1) -> Permit:
        """Take tokens of a budget, or be told when to come back: `ctx.rate_limit.acquire("slack")`."""
        return self._acquire(scope, tokens).wait()

    async def aacquire(self, scope: str, tokens: int = 1) -> Permit:
        """`acquire` for asyncio."""
        return await self._acquire(scope, tokens).awaited()

    def drain(self, scope: str) -> None:
        """The far end has said 429: whatever the budget says, there is nothing left of it."""
        self._drain(scope).wait()

    async def adrain(self, scope: str) -> None:
        """`drain` for asyncio."""
        await self._drain(scope).awaited()

    def _acquire(self, scope: str, tokens: int) -> PendingAnswer[Permit]:
        if type(tokens) is not int or tokens < 1:
            raise UsageError(f"tokens must be a whole number above 0, not {tokens!r}")
        return PendingAnswer(self._link.acquire(self._claim, check_name(scope, "scope"), tokens), Permit)

    def _drain(self, scope: str) -> PendingAnswer[None]:
        return PendingAnswer(self._link.drain(check_name(scope, "scope")), lambda _: None)
