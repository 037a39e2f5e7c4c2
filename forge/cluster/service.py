"""What every service of the cluster is: a round of work that can be run at any time, and again."""

from __future__ import annotations

import abc

__all__ = ["Service"]


class Service(abc.ABC):
    """Something done every so often, by the leader or by every pod."""

    name: str  # as in `forge run <name>`
    every: float  # seconds between runs, jittered by the runner
    leader_only: bool  # run with a term, or by every pod

    @abc.abstractmethod
    def run_once(self, term: int | None) -> str | None:
        """One round; what it did, in words for the log, or None if nothing. Leader services get the term and hand it
        to every write."""
