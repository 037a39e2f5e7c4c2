"""An app that stores nothing, for tests of what it would store."""

from __future__ import annotations

from typing import Any

from forge import Forge
from forge.codec import decode
from forge.job import NewJob

NOWHERE = "sqlite:////nowhere/at/all.db"


class Recorder(Forge):
    """An app that keeps what it is asked to store, and stores nothing."""

    def __init__(self, **options: Any) -> None:
        super().__init__(NOWHERE, **options)
        self.stored: list[NewJob] = []

    def _submit(self, jobs: Any, conn: Any = None) -> Any:
        assert conn is None
        made = list(jobs)
        self.stored += made
        return [None for _ in made]

    async def _asubmit(self, jobs: Any, conn: Any = None) -> Any:
        return self._submit(jobs, conn)

    @property
    def payloads(self) -> list[Any]:
        return [decode(job.payload) for job in self.stored]


def call(*args: Any, **kwargs: Any) -> dict[str, Any]:
    """The payload of a call."""
    return {"args": list(args), "kwargs": kwargs}
