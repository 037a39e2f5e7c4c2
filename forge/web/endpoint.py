"""What an endpoint of the API is. Routes, checks of what comes in, and the OpenAPI description are all made of these.

An endpoint's function is given one `ApiCall` and answers a value that msgspec can write, or an `ApiAnswer` where the
status or a header depends on what was done. What a caller did wrong is raised as a `Problem`. It runs in a thread, may
block on the storage, and keeps nothing between calls.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from forge.config import Config
from forge.storage import Storage

__all__ = ["ApiAnswer", "ApiCall", "Caller", "Endpoint", "Problem", "Scope"]

Scope = Literal["read", "operate", "admin"]
SCOPES: tuple[Scope, ...] = ("read", "operate", "admin")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks."""

    name: str  # of the token, or "local" where none is needed
    scope: Scope
    address: str  # where the request came from, for the audit
    queues: frozenset[str] | None = None  # the only ones that it may see and change; None: all

    def may(self, scope: Scope) -> bool:
        """Whether that is within its rights."""
        return SCOPES.index(scope) <= SCOPES.index(self.scope)

    def sees(self, queue: str) -> bool:
        """Whether jobs of this queue are there for it at all."""
        return self.queues is None or queue in self.queues


@dataclass(frozen=True, slots=True)
class ApiCall:
    """One request, checked: `query` and `body` are of the types that the endpoint names."""

    storage: Storage
    config: Config
    caller: Caller
    path: Mapping[str, str] = field(default_factory=dict)
    query: Any = None
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)  # names in lower case


class Problem(Exception):
    """What is answered instead, as application/problem+json (RFC 9457). `type` is stable; `title` goes with it."""

    def __init__(self, status: int, type: str, detail: str, **more: Any) -> None:
        """`more` are further members of the answer, such as `field` for what is wrong with which one."""
        super().__init__(detail)
        self.status, self.type, self.detail, self.more = status, type, detail, more


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """A value with another status than the endpoint's, or with headers."""

    value: Any
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One line of the table of endpoints."""

    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    path: str  # below /api/v1, with {names}
    scope: Scope  # what a caller must be allowed to do
    call: Callable[[ApiCall], Any]
    summary: str  # one sentence, for /docs and OpenAPI
    query: type[msgspec.Struct] | None = None
    body: type[msgspec.Struct] | None = None
    answer: Any = None  # the type that is answered; None: 204, nothing
    status: int = 200
    problems: tuple[int, ...] = ()  # statuses of problems of its own, beside those that every endpoint may answer
    audited: bool = False  # the change is written to the audit: what was asked, by whom, and how it ended

    @property
    def name(self) -> str:
        """Its name in OpenAPI: that of its function."""
        return self.call.__name__
