"""Shares on SQLite."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from forge.storage.contract import Incarnation
from forge.storage.contract.shares import Cluster, Member, QueueSeen, Share, ShareChange
from forge.storage.shared.share_rules import NotedShares, limits, news
from forge.storage.shared.statements import Queries
from forge.storage.sqlite.database import Handle
from forge.storage.sqlite.drivers import SqliteConnection
from forge.storage.sqlite.facet import SqliteFacet

__all__ = ["SqliteShareStore"]


class SqliteShareStore(SqliteFacet, NotedShares):
    """See `ShareStore`."""

    def __init__(self, reader: Handle, writer: Handle, clock: Callable[[], float], sql: Queries) -> None:
        super().__init__(reader, writer, clock, sql)
        self._last: tuple[Any, dict[str, int]] | None = None  # what an answer followed from, and the answer

    def beat(self, who: Incarnation, running: Mapping[str, int]) -> dict[str, int] | None:
        with self._writing() as (conn, now):
            if not conn.change(self._sql.beat.sql, {"pod": who.pod.id, "now": now}):
                return None
            found = self._looked(conn, who, running)
            return self._told(conn, who, running) if found is None else found

    def look(self, who: Incarnation, running: Mapping[str, int]) -> dict[str, int]:
        found = self._reader.read(lambda conn: self._looked(conn, who, running))
        if found is not None:
            return found
        with self._writing() as (conn, _):
            return self._told(conn, who, running)

    def _looked(self, conn: SqliteConnection, who: Incarnation, running: Mapping[str, int]) -> dict[str, int] | None:
        """The answer, if the pod has nothing to say. Kept for as long as nothing that it follows from has changed."""
        base = (who.pod.id, dict(running), conn.rows(self._sql.known_of_shares.sql))
        if self._last is None or self._last[0] != base:
            seen = self._seen(conn, who, running)
            if news(seen, running):
                return None
            self._last = base, limits(seen, {})
        return self._last[1]

    def _seen(self, conn: SqliteConnection, who: Incarnation, running: Mapping[str, int]) -> list[QueueSeen]:
        params = {"pod": who.pod.id, "queues": orjson.dumps(list(running)).decode()}
        found = (QueueSeen(*row) for row in conn.rows(self._sql.look_at_shares.sql, params))
        seen = [
            each._replace(paused=bool(each.paused), declared=bool(each.declared), rivals=bool(each.rivals))
            for each in found
        ]
        self._note(seen)
        return seen

    def _told(self, conn: SqliteConnection, who: Incarnation, running: Mapping[str, int]) -> dict[str, int]:
        seen = self._seen(conn, who, running)
        written: dict[str, int] = {}
        for report in news(seen, running):
            written |= dict(conn.rows(self._sql.report_share.sql, {"pod": who.pod.id, **report._asdict()}))
        return limits(seen, written)

    def cluster(self) -> Cluster:
        def work(conn: SqliteConnection) -> Cluster:
            return Cluster(
                dict(conn.rows(self._sql.totals.sql)),
                [Member(id, tuple(orjson.loads(queues)), n) for id, queues, n in conn.rows(self._sql.members.sql)],
                [Share(*row) for row in conn.rows(self._sql.shares.sql)],
            )

        return self._reader.read(work)

    def assign(self, term: int, changes: Sequence[ShareChange]) -> None:
        with self._led(term) as (conn, _):
            for change in changes:
                query = self._sql.remove_share if change.workers is None else self._sql.assign_share
                params: dict[str, Any] = {**change._asdict(), "term": term}
                conn.rows(query.sql, {name: params[name] for name in query.names})

    def undeclared(self) -> dict[str, bool]:
        rows = self._reader.read(lambda conn: conn.rows(self._sql.undeclared_queues.sql))
        return {queue: bool(waits) for queue, waits in rows}
