"""The lease on PostgreSQL."""

from __future__ import annotations

from forge.storage.contract.leases import Holder, Leader, LeaseAnswer, LeaseStore
from forge.storage.postgres.facet import PostgresFacet

__all__ = ["PostgresLeaseStore"]


class PostgresLeaseStore(PostgresFacet, LeaseStore):
    """See `LeaseStore`."""

    def acquire(self, holder: Holder, ttl: float) -> LeaseAnswer:
        params = {"key": holder.key, "pod": holder.pod, "host": holder.host, "pid": holder.pid, "ttl": ttl}
        steps = self._step("wait_for_disk"), self._step("wait_a_moment"), self._step("acquire_lease", **params)
        found = self._db.run(*steps)[-1].fetchall()
        if not found:  # somebody has emptied the table
            self._do("restore_lease")
            found = self._db.run(*steps)[-1].fetchall()
        term, left = found[0]
        return LeaseAnswer(term, ttl if term is not None else left)

    def renew(self, term: int, holder: Holder, ttl: float) -> bool:
        params = {"term": term, "key": holder.key, "pod": holder.pod, "ttl": ttl}
        return self._do("renew_lease", **params) == 1

    def release(self, term: int) -> None:
        self._db.run(self._step("wait_a_moment"), self._step("release_lease", term=term))

    def leader(self) -> Leader | None:
        rows = self._rows("leader")
        return Leader(*rows[0]) if rows else None

    def check(self, term: int) -> None:
        self._led(term, lambda _: None)
