"""What operators do on PostgreSQL: to jobs by id, to queues, and retention; and what they look at."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from forge.job import ACTIVE, ENDED, Counts, Job, JobFilter, Page, QueueSettings, Status
from forge.storage.contract.statements import Step
from forge.storage.contract.storage import Storage
from forge.storage.contract.values import Cancellation, Deletion, Note, Pruned
from forge.storage.postgres.database import LONG
from forge.storage.postgres.facet import PostgresFacet
from forge.storage.postgres.rows import as_job, packed_ids
from forge.storage.shared.notes import tidy_notes
from forge.storage.shared.queue_settings import check_settings

__all__ = ["PostgresOperating"]

_AHEAD = 1.0  # seconds that ids may be ahead of the clock: they count on when many are made at once
_LAST_ID = UUID(int=2**128 - 1)


class PostgresOperating(PostgresFacet, Storage):
    """See `Storage`."""

    def cancel(self, ids: Collection[UUID]) -> dict[UUID, Cancellation]:
        return self._change("cancel", ids)

    def delete(self, ids: Collection[UUID]) -> dict[UUID, Deletion]:
        return self._change("delete", ids)

    def retry(self, ids: Collection[UUID]) -> set[UUID]:
        return set(self._change("revive", ids, reset=True))

    def requeue(self, ids: Collection[UUID]) -> set[UUID]:
        return set(self._change("revive", ids, reset=False))

    def _change(self, name: str, ids: Collection[UUID], **params: Any) -> dict[UUID, Any]:
        """An operator's verb on jobs by id; the keys of those it ended are given back in the same transaction."""
        packed = packed_ids(sorted(ids, key=lambda i: i.int))
        settings = Step(self._queries.take_your_time, {}), Step(self._queries.plan_by_index, {"local": True})
        change = Step(getattr(self._queries, name), {"ids": packed, **params})
        settle = Step(self._queries.settle_keys, {"ids": packed})
        return {row[0]: row[1] for row in self._db.run(*settings, change, settle, limit=LONG)[2].fetchall()}

    def get(self, ids: Collection[UUID]) -> dict[UUID, Job]:
        return {row[0]: as_job(row) for row in self._by_index("get", ids=packed_ids(list(ids)))}

    def find(self, where: JobFilter, limit: int = 50, cursor: str | None = None) -> Page:
        params = {
            "before": UUID(cursor) if cursor else _LAST_ID,
            "statuses": [str(s) for s in where.statuses] or None,
            "queues": list(where.queues) or None,
            "kinds": list(where.kinds) or None,
            "tag": where.tag,
            "limit": limit + 1,
        }
        found = self._long(_listing(where.statuses), **params)
        jobs = [as_job(row) for row in found[:limit]]
        return Page(jobs, jobs[-1].id.hex if len(found) > limit else None)

    def counts(self) -> dict[str, Counts]:
        return {row[0]: Counts(*row[1:]) for row in self._long("counts")}

    def ended_counts(self) -> dict[str, dict[Status, int]]:
        found: dict[str, dict[Status, int]] = {}
        for queue, status, count in self._long("ended_counts"):
            found.setdefault(queue, {})[Status(status)] = count
        return found

    def queues(self) -> dict[str, QueueSettings]:
        return {row[0]: QueueSettings(*row) for row in self._rows("queues")}

    def set_queue(self, name: str, **settings: Any) -> QueueSettings:
        found = QueueSettings(*self._one("set_queue", name=name, **check_settings(name, settings)))
        if settings.get("paused") is False:
            self._rows("notify", queues=[name])
        return found

    def set_wake(self, queue: str, wake: bool) -> None:
        self._do("set_wake", queue=queue, wake=wake)

    def prune(self, n: int = 1000, after: str | None = None, *, term: int | None = None) -> Pruned:
        """An id begins with the time it was made at, and no job ends before: ids younger than the shortest retention
        are not looked at (if a producer's clock was ahead, its jobs go as much later). Ids from tomorrow on have no
        such time (a clock was wrong, or they are of another version): all of these are."""
        least, now = self._one("shortest_retention")
        young, odd = _id_of_time(now - least + _AHEAD), _id_of_time(now + 86_400)
        at = UUID(after) if after else UUID(int=0)
        walked = deleted = 0
        floor: str | None = None
        for last in (young, _LAST_ID):
            if last == _LAST_ID:
                at = max(at, odd)
            if at <= last:
                span = {"n": n - walked, "first": at, "last": last}
                looked, gone, upto, kept = self._led_rows(term, self._step("prune", **span))[0]
                walked, deleted = walked + looked, deleted + gone
                following = UUID(int=min(upto.int + 1, _LAST_ID.int)) if upto else at
                if last == young and looked:
                    floor = str(kept or following)
                if walked >= n and upto < _LAST_ID:
                    return Pruned(walked, deleted, str(following), floor)
        self._led_rows(term, self._step("prune_keys", n=n))
        return Pruned(walked, deleted, None, floor)

    def progress(self, notes: Sequence[Note]) -> None:
        if notes := tidy_notes(notes):
            ids, tokens, percents, messages = zip(*notes, strict=True)
            params = {
                "ids": packed_ids(ids),
                "claims": list(tokens),
                "percents": list(percents),
                "messages": list(messages),
            }
            self._by_index("progress", **params)


def _id_of_time(seconds: float) -> UUID:
    """Below every id that was made then or later."""
    return UUID(int=max(0, int(seconds * 1000)) << 80)


def _listing(statuses: Collection[Status]) -> str:
    """The query that looks no further than it must."""
    live, ended = ACTIVE.intersection(statuses), ENDED.intersection(statuses)
    if bool(live) == bool(ended):  # both, or no filter at all
        return "list_all"
    if live:
        return "list_live"
    return "list_ended" if Status.DONE in ended else "list_unhappy"
