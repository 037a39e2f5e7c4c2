"""Lines on PostgreSQL: the walk along them is one statement, `claim_lines`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from psycopg import Rollback
from psycopg.pq.abc import PGresult

from forge import fastpath
from forge.job import Claim
from forge.storage.contract import Incarnation, Query, Step
from forge.storage.contract.lines import LineLevel, Turn
from forge.storage.postgres.claims import PostgresClaims
from forge.storage.postgres.database import PostgresConnection, pipeline
from forge.storage.postgres.rows import raw_rows
from forge.storage.postgres.wire import TextArray
from forge.storage.shared.statements import Queries
from forge.storage.shared.walking import WalkedLines, chains_of, steps_for

__all__ = ["PostgresLineStore"]

_CLAIM = slice(7, 17)  # the columns of a claim, behind those of the walk
_PLACE = slice(18, 20)  # the key and the place that it shares with others, if it may


class PostgresLineStore(WalkedLines):
    """See `LineStore`."""

    def __init__(self, claims: PostgresClaims, queries: Queries) -> None:
        self._claims, self._queries = claims, queries

    def queues(self) -> set[str]:
        return {queue for (queue,) in self._claims.ask(Step(self._queries.line_queues, {}))}

    def hand_over(self, last: Claim, heir: Claim) -> bool:
        def ask(conn: PostgresConnection, query: Query, claim: Claim, **params: int) -> Any:
            return pipeline(conn, [Step(query, {"id": claim.id, "claim": claim.token, **params})])[0].fetchone()

        def work(conn: PostgresConnection) -> bool:
            took = None
            with conn.transaction():  # one after the other: no index lets both have it for a moment
                held = ask(conn, self._queries.let_go_of_place, last)
                if held is not None:
                    took = ask(conn, self._queries.take_place, heir, place=held[0])
                if took is None:
                    raise Rollback
            return took is not None

        return self._claims.db.attempt(work)

    def _turn(
        self,
        who: Incarnation,
        queue: str,
        n: int,
        most_bytes: int,
        way: tuple[LineLevel, LineLevel],
        allowed: Mapping[str, int] | None,
        behind: int,
    ) -> Turn:
        scopes = allowed or {}
        (line, priority), (last_line, last_priority) = way
        params = {
            "queue": queue,
            "n": n,
            "most_bytes": most_bytes,
            "most": steps_for(n),
            "behind": behind,
            "after_line": line,
            "after_priority": priority,
            "last_line": last_line,
            "last_priority": last_priority,
            "unbounded": allowed is None,
            "scopes": TextArray(fastpath.text_array([scope.encode() for scope in scopes])),
            "allowed": "{" + ",".join(map(str, scopes.values())) + "}",
        }

        def steps(token: int) -> Sequence[Step]:
            lock = Step(self._queries.lock_lines, {"queue": queue})
            return [lock, Step(self._queries.claim_lines, {**params, "claim": token})]

        return self._claims.claim_by(who, steps, lambda result, token: _read(result, token, queue))


def _read(result: PGresult, token: int, queue: str) -> Turn:
    rows = raw_rows(result)
    line, priority, around, empty, closed, seen, hungry = rows[0][:7]
    found = [row for row in rows if row[9] is not None]
    claims = fastpath.claims([row[_CLAIM] for row in found], token, queue)
    return Turn(
        claims=claims,
        spent=Counter(row[17] for row in found if row[17] is not None),
        after=None if line is None else (line, priority),
        around=around,
        empty=frozenset(empty or ()),
        closed=closed,
        seen=seen,
        hungry=hungry,
        chains=chains_of(claims, [row[_PLACE] for row in found]),
    )
