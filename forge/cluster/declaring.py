"""The service that keeps declared schedules stored: those of this pod's `forge.toml` and of its code.

Every pod does it for its own project, once when it has started and again when it reads other settings or code; nothing
else makes it write. So of the pods of one project the one that started last counts, whoever leads: a rolling deploy
brings its schedules with its first pod, and an old pod that goes on, or comes to lead, does not bring the old ones
back. What other projects have declared is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from forge.cluster.schedules import now_of, seed
from forge.cluster.service import Service
from forge.errors import UsageError
from forge.storage import Storage
from forge.storage.contract.schedules import NewSchedule, Seeded, Synced

__all__ = ["Declare"]


class Declare(Service):
    """Stores the schedules that this pod's settings and code declare."""

    name = "schedules"
    every = 1.0
    leader_only = False

    def __init__(
        self, storage: Storage, project: Callable[[], str], declared: Callable[[], Sequence[NewSchedule]]
    ) -> None:
        """Both answer what holds now: whose the schedules are, and which they are."""
        self._storage, self._project, self._declared = storage, project, declared
        self._stored: tuple[str, Sequence[NewSchedule]] | None = None

    def run_once(self, term: int | None) -> str | None:  # noqa: ARG002 (every pod does this for itself)
        project, declared = self._project(), list(self._declared())
        if self._stored == (project, declared):
            return None
        now = now_of(self._storage)
        done = self._storage.schedules.sync(project, [_seeded(new, now) for new in declared])
        self._stored = project, declared
        return _told(done)


def _seeded(new: NewSchedule, now: datetime) -> Seeded:
    try:
        return seed(new, now)
    except UsageError as e:
        return Seeded(new, None, str(e))


def _told(done: Synced) -> str | None:
    """A sync in words."""
    words = {
        "added": done.added,
        "changed": done.changed,
        "removed": done.removed,
        "declared now, no longer set at run time:": done.taken_over,
        "taken over, though another project declares them too:": done.contested,
    }
    return ", ".join(f"{word} {', '.join(names)}" for word, names in words.items() if names) or None
