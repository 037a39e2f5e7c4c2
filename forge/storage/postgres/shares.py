"""Shares on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from forge.storage.contract import Incarnation, Step
from forge.storage.contract.shares import Cluster, Member, QueueSeen, Share, ShareChange
from forge.storage.postgres.database import PostgresDatabase
from forge.storage.postgres.facet import PostgresFacet
from forge.storage.postgres.rows import text_array
from forge.storage.shared.share_rules import NotedShares, limits, news
from forge.storage.shared.statements import Queries

__all__ = ["PostgresShareStore"]

Ask = Callable[[Step], list[tuple[Any, ...]]]


class PostgresShareStore(PostgresFacet, NotedShares):
    """See `ShareStore`."""

    def __init__(self, db: PostgresDatabase, queries: Queries, ask: Ask) -> None:
        """`ask` runs a statement on connections that plan by index: those that beat, so a heart needs no others."""
        super().__init__(db, queries)
        self._ask = ask

    def beat(self, who: Incarnation, running: Mapping[str, int]) -> dict[str, int] | None:
        rows = self._see("beat_and_look", who, running)
        return self._told(who, rows, running) if rows else None

    def look(self, who: Incarnation, running: Mapping[str, int]) -> dict[str, int]:
        return self._told(who, self._see("look_at_shares", who, running), running)

    def _see(self, name: str, who: Incarnation, running: Mapping[str, int]) -> list[tuple[Any, ...]]:
        return self._ask(self._step(name, pod=who.pod.id, queues=text_array(running)))

    def _told(self, who: Incarnation, rows: Sequence[tuple[Any, ...]], running: Mapping[str, int]) -> dict[str, int]:
        seen = [QueueSeen(*row) for row in rows if row[0] is not None]
        self._note(seen)
        reports = news(seen, running)
        if not reports:
            return limits(seen, {})
        queues, *numbers = zip(*reports, strict=True)
        params = dict(zip(("workers", "applied", "running"), map(_ints, numbers), strict=True))
        step = self._step("report_shares", pod=who.pod.id, queues=text_array(queues), **params)
        return limits(seen, dict(self._ask(step)))

    def cluster(self) -> Cluster:
        queues, pods, shares = (orjson.loads(column) for column in self._rows("cluster")[0])
        return Cluster(
            dict(queues),
            [Member(id, tuple(served), capacity) for id, served, capacity in pods],
            [Share(*row) for row in shares],
        )

    def assign(self, term: int, changes: Sequence[ShareChange]) -> None:
        pods, queues, workers = ([change[i] for change in sorted(changes, key=lambda c: c[:2])] for i in range(3))
        params = {"term": term, "pods": pods, "queues": queues, "workers": workers}
        self._led_rows(term, self._step("assign_shares", **params))

    def undeclared(self) -> dict[str, bool]:
        return dict(self._by_index("undeclared_queues"))


def _ints(numbers: Iterable[int | None]) -> str:
    """An int[] as it is written."""
    return "{" + ",".join("null" if number is None else str(number) for number in numbers) + "}"
