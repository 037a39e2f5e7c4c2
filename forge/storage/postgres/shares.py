"""Shares on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import orjson

from forge import fastpath
from forge.storage.contract import Incarnation, Step
from forge.storage.postgres.connection import Database, pipeline
from forge.storage.postgres.leases import led
from forge.storage.postgres.wire import TextArray
from forge.storage.shares import Change, Cluster, Member, Seen, Share, Shares, limits, news
from forge.storage.statements import Queries

__all__ = ["PostgresShares"]

Ask = Callable[[Step], list[tuple[Any, ...]]]


class PostgresShares(Shares):
    """See `Shares`."""

    def __init__(self, db: Database, ask: Ask, queries: Queries) -> None:
        """`ask` runs a statement on connections that plan by index: those that beat, so a heart needs no others."""
        self._db, self._ask, self._queries = db, ask, queries

    def _rows(self, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        return self._db.run(Step(getattr(self._queries, name), params))[0].fetchall()

    def beat(self, who: Incarnation, running: Mapping[str, int]) -> dict[str, int] | None:
        rows = self._see("beat_and_look", who, running)
        return self._told(who, rows, running) if rows else None

    def look(self, who: Incarnation, running: Mapping[str, int]) -> dict[str, int]:
        return self._told(who, self._see("look_at_shares", who, running), running)

    def _see(self, name: str, who: Incarnation, running: Mapping[str, int]) -> list[tuple[Any, ...]]:
        return self._ask(Step(getattr(self._queries, name), {"pod": who.pod.id, "queues": _texts(running)}))

    def _told(self, who: Incarnation, rows: Sequence[tuple[Any, ...]], running: Mapping[str, int]) -> dict[str, int]:
        seen = [Seen(*row) for row in rows if row[0] is not None]
        self._note(seen)
        reports = news(seen, running)
        if not reports:
            return limits(seen, {})
        queues, *numbers = zip(*reports, strict=True)
        params = dict(zip(("workers", "applied", "running"), map(_ints, numbers), strict=True))
        step = Step(self._queries.report_shares, {"pod": who.pod.id, "queues": _texts(queues), **params})
        return limits(seen, dict(self._ask(step)))

    def cluster(self) -> Cluster:
        queues, pods, shares = (orjson.loads(column) for column in self._rows("cluster")[0])
        return Cluster(
            dict(queues),
            [Member(id, tuple(served), capacity) for id, served, capacity in pods],
            [Share(*row) for row in shares],
        )

    def assign(self, term: int, changes: Sequence[Change]) -> None:
        pods, queues, workers = ([change[i] for change in sorted(changes, key=lambda c: c[:2])] for i in range(3))
        params = {"term": term, "pods": pods, "queues": queues, "workers": workers}
        led(self._db, self._queries, term, lambda conn: pipeline(conn, [Step(self._queries.assign_shares, params)]))

    def undeclared(self) -> dict[str, bool]:
        settle = Step(self._queries.plan_by_index, {"local": True})
        return dict(self._db.run(settle, Step(self._queries.undeclared_queues, {}))[1].fetchall())


def _texts(texts: Iterable[str]) -> TextArray:
    return TextArray(fastpath.text_array([text.encode() for text in texts]))


def _ints(numbers: Iterable[int | None]) -> str:
    """An int[] as it is written."""
    return "{" + ",".join("null" if number is None else str(number) for number in numbers) + "}"
