"""PostgreSQL behind the storage contract: what it is made of, and its connections."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import conninfo_to_dict

from forge.job import Claim, Ending
from forge.storage.contract.listener import Deaf, Listener
from forge.storage.contract.schema import SchemaState
from forge.storage.contract.statements import Step
from forge.storage.contract.values import MAX_CRASHES, Fates, Incarnation, Want
from forge.storage.postgres import guest, refusals
from forge.storage.postgres import schema as schema_of
from forge.storage.postgres.budgets import PostgresBudgetStore
from forge.storage.postgres.claims import PostgresClaims
from forge.storage.postgres.database import TIMEOUT, PostgresDatabase
from forge.storage.postgres.enqueue import PostgresEnqueue
from forge.storage.postgres.leases import PostgresLeaseStore
from forge.storage.postgres.lines import PostgresLineStore
from forge.storage.postgres.listener import PostgresListener
from forge.storage.postgres.metrics import PostgresMetricStore
from forge.storage.postgres.operating import PostgresOperating
from forge.storage.postgres.pods import PostgresPods
from forge.storage.postgres.schedules import PostgresScheduleStore
from forge.storage.postgres.shares import PostgresShareStore
from forge.storage.shared.low_water import MOST_BYTES, LowWater
from forge.storage.shared.statements import check_schema_name, load_queries

__all__ = ["PostgresStorage"]

CLAIMING = 2  # connections of a program that claims: one claims while the other ends


class Role(NamedTuple):
    """What one of a pod's storages is for. A pod has a connection for each purpose that must not wait for another's,
    and one that listens: five in all."""

    connections: int
    by_index: bool  # sessions whose planner goes by index, once and for all
    timeout: float  # seconds that a statement may take


ROLES = {
    # One claims while the other ends; what handlers ask for and what schedules fire goes between.
    "work": Role(2, True, TIMEOUT),
    # Beats and the lease: both are tiny, and neither waits for a lock for more than a moment.
    "heart": Role(1, True, 3.0),
    # The rest, one after another: statements of all kinds, some of which take long.
    "services": Role(1, False, 10.0),
}


class PostgresStorage(PostgresEnqueue, PostgresPods, PostgresOperating):
    """See `Storage`. One pool for programs, one for those of them that claim, and a connection for the lease, all made
    when needed; the storages of a pod have one pool for all, as their `role` says. Listeners have their own.

    Verbs are in the file of their subject. What claims and ends is an object of its own, with its own connections."""

    dialect = "postgres"

    def __init__(
        self,
        url: str,
        *,
        schema: str = "forge",
        pool_size: int = 4,
        listen_url: str | None = None,
        listen: bool = True,
        timeout: float | None = None,
        patience: float | None = None,
        keep: float | None = None,
        role: str | None = None,
    ) -> None:
        queries = load_queries("postgres", check_schema_name(schema))
        by_index = Step(queries.plan_by_index, {"local": False})

        def database(size: int, settle: Step | None = None, timeout: float | None = timeout) -> PostgresDatabase:
            return PostgresDatabase(url, schema, size, settle, timeout=timeout, patience=patience, keep=keep)

        if role is None:
            db, claiming, leasing = database(pool_size), database(CLAIMING, by_index), database(1)
        else:
            size, settled, usual = ROLES[role]
            db = database(size, by_index if settled else None, usual if timeout is None else timeout)
            claiming = leasing = db
        claims = PostgresClaims(claiming, queries)
        super().__init__(db, queries, claims)
        self._databases = databases = {db, claiming, leasing}
        self._listening = PostgresDatabase(listen_url or url, schema, 1) if listen else None
        self._here: tuple[Any, ...] = ()  # which database and server this is; empty: not asked yet
        self.budgets = PostgresBudgetStore(db, queries)
        # Not on the connections of the services: whatever those of a leader wait for, its lease must not.
        self.leases = PostgresLeaseStore(leasing, queries)
        self.lines = PostgresLineStore(claims, queries)
        self.metrics = PostgresMetricStore(db, queries, lambda: sum(each.size for each in databases))
        self.schedules = PostgresScheduleStore(db, queries)
        self.shares = PostgresShareStore(db, queries, claims.ask)
        parts = conninfo_to_dict(db.conninfo)
        self.url = f"postgresql://{parts.get('host', 'localhost')}/{parts.get('dbname', '')}"

    # -- the database ------------------------------------------------------------------------------------------

    def close(self) -> None:
        for database in self._databases:
            database.close()

    def schema_state(self) -> SchemaState:
        return schema_of.state(self._db)

    def migrate(self) -> list[tuple[int, str]]:
        return schema_of.migrate(self._db)

    def check_schema(self) -> None:
        schema_of.check(self._db)

    def now(self) -> float:
        return float(self._one("clock")[0])

    def where(self) -> Step:
        step = Step(self._queries.where_am_i, {})
        if not self._here:
            self._here = self._db.run(step)[0].fetchall()[0][:2]
        return step

    def elsewhere(self, answer: Sequence[Sequence[Any]]) -> str | None:
        database, server, name, host, port = answer[0]
        if (database, server) == self._here:
            return None
        # Asked again: the server may have been started anew, or another one have taken its place.
        self._here = here = self._db.run(self.where())[0].fetchall()[0][:2]
        if (database, server) == here:
            return None
        which = "" if server == here[1] else f" of another server ({host}:{port})" if host else " of another server"
        return f"database {name}{which}"

    def connect(self) -> Any:
        try:
            return psycopg.connect(self._db.conninfo)
        except psycopg.OperationalError as e:
            raise self._db.unreachable(e) from None

    # -- claiming and ending -----------------------------------------------------------------------------------

    def claim(
        self,
        who: Incarnation,
        queue: str,
        n: int,
        low_water: LowWater | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> list[Claim]:
        return self._claims.claim(who, queue, n, low_water, most_bytes)

    def offer(self, who: Incarnation, token: int, queue: str, channel: str, beat_within: float) -> bool:
        return self._claims.offer(who, token, queue, channel, beat_within)

    def withdraw(self, who: Incarnation, tokens: Sequence[int]) -> None:
        self._claims.withdraw(who, tokens)

    def finalize(
        self,
        endings: Sequence[Ending],
        *,
        max_crashes: int = MAX_CRASHES,
        fates: Fates | None = None,
        lock_wait: float | None = None,
    ) -> list[Ending]:
        return self._claims.finalize(endings, max_crashes, fates, lock_wait)

    def locked(self, endings: Sequence[Ending]) -> list[Ending]:
        found = refusals.locked(self._claims.db, self._queries, [e.claim.id for e in endings])
        return [e for e in endings if e.claim.id in found]

    def lock_holder(self, claim: Claim) -> str | None:
        return refusals.lock_holder(self._claims.db, self._queries, claim)

    def try_writing(self, size: int = 0) -> None:
        refusals.try_writing(self._claims.db, self._queries, size)

    def exchange(
        self, who: Incarnation, endings: Sequence[Ending], wants: Sequence[Want], *, max_crashes: int = MAX_CRASHES
    ) -> tuple[list[Ending], list[Claim]]:
        return self._claims.exchange(who, endings, wants, max_crashes)

    def complete_in(self, conn: Any, ending: Ending) -> bool:
        return guest.complete(conn, self._queries, ending)

    def next_due(self, queues: Sequence[str], low_waters: Mapping[str, LowWater] | None = None) -> float | None:
        return self._claims.next_due(queues, low_waters or {})

    def listen(self) -> Listener:
        return PostgresListener(self._listening) if self._listening else Deaf()
