"""What a pod makes of its part in a queue, the same on every database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from forge.storage.contract.shares import QueueSeen, ShareReport, ShareStore

__all__ = ["NotedShares", "allowed", "is_shared", "limits", "news"]


class NotedShares(ShareStore):
    """Remembers what the last look at all queues has shown."""

    def _note(self, seen: Sequence[QueueSeen]) -> None:
        """A look at all queues."""
        self.lined = frozenset(each.queue for each in seen if each.lines)
        self.shared = frozenset(each.queue for each in seen if is_shared(each))


def allowed(seen: QueueSeen) -> int:
    """Workers that a pod may have of a queue, were it not paused."""
    if not seen.declared:
        return 0
    if not seen.others and not seen.rivals:
        return seen.max_workers
    if seen.workers is None:
        return -(-seen.max_workers // (seen.others + 1))
    return min(seen.workers, seen.max_workers)


def is_shared(seen: QueueSeen) -> bool:
    """Whether other pods may have workers of this queue."""
    return bool(seen.others or seen.rivals) and allowed(seen) < seen.max_workers


def news(seen: Sequence[QueueSeen], running: Mapping[str, int]) -> list[ShareReport]:
    """What a pod has to say, in the order in which everybody locks rows. Mostly nothing."""
    found = []
    for each in seen:
        applied, now = allowed(each), running.get(each.queue, 0)
        if (applied, now) == (each.applied, each.running):
            continue
        if each.declared or now or each.applied is not None:
            found.append(ShareReport(each.queue, each.workers, applied, now))
    return sorted(found, key=lambda report: report.queue)


def limits(seen: Sequence[QueueSeen], recorded: Mapping[str, int]) -> dict[str, int]:
    """What the pod goes by; `recorded` has what was just written down."""
    return {
        each.queue: 0 if each.paused else recorded.get(each.queue, each.applied or 0) for each in seen if each.declared
    }
