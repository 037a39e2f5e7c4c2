"""Shares on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from forge.errors import LostLease
from forge.storage.contract import Incarnation, Step
from forge.storage.postgres.connection import Database, Rows
from forge.storage.shares import Change, Cluster, Member, Seen, Share, Shares, limits, news
from forge.storage.statements import Queries

__all__ = ["PostgresShares"]


class PostgresShares(Shares):
    """See `Shares`."""

    def __init__(self, db: Database, queries: Queries, by_index: Callable[..., Rows]) -> None:
        self._db, self._queries, self._by_index = db, queries, by_index

    def _rows(self, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._db.run(Step(getattr(self._queries, name), params))[0].fetchall()

    def beat(self, who: Incarnation, running: Mapping[str, int]) -> dict[str, int] | None:
        rows = self._rows("beat_and_look", pod=who.pod.id, queues=list(running))
        return self._told(who, rows, running) if rows else None

    def look(self, who: Incarnation, running: Mapping[str, int]) -> dict[str, int]:
        return self._told(who, self._rows("look_at_shares", pod=who.pod.id, queues=list(running)), running)

    def _told(self, who: Incarnation, rows: Sequence[tuple[Any, ...]], running: Mapping[str, int]) -> dict[str, int]:
        seen = [Seen(*row) for row in rows if row[0] is not None]
        reports = news(seen, running)
        if not reports:
            return limits(seen, {})
        queues, workers, applied, now = (list(column) for column in zip(*reports, strict=True))
        written = self._rows(
            "report_shares", pod=who.pod.id, queues=queues, workers=workers, applied=applied, running=now
        )
        return limits(seen, dict(written))

    def cluster(self) -> Cluster:
        queues, pods, shares = (orjson.loads(column) for column in self._rows("cluster")[0])
        return Cluster(
            dict(queues),
            [Member(id, tuple(served), capacity) for id, served, capacity in pods],
            [Share(*row) for row in shares],
        )

    def assign(self, term: int, changes: Sequence[Change]) -> None:
        pods, queues, workers = ([change[i] for change in sorted(changes, key=lambda c: c[:2])] for i in range(3))
        if not self._rows("assign_shares", term=term, pods=pods, queues=queues, workers=workers)[0][0]:
            raise LostLease(f"term {term} is over: another pod leads; nothing was written")

    def undeclared(self) -> dict[str, bool]:
        return dict(self._by_index("undeclared_queues").fetchall())
