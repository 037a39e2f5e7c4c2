"""Bulk enqueue: one COPY in binary, all or nothing."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence

import psycopg

from forge import fastpath
from forge.job import Enqueued, NewJob, Receipt
from forge.storage.contract import Step
from forge.storage.postgres.database import PostgresConnection, PostgresDatabase, pipeline
from forge.storage.postgres.rows import lined_rows, micros, packed_ids
from forge.storage.shared.statements import Queries

__all__ = ["Bulk"]

_HEAD = b"PGCOPY\n\xff\r\n\x00" + bytes(8)
_TAIL = b"\xff\xff"
_CHUNK = 2_000  # jobs encoded between two writes: half a megabyte or so
_WORTH_IT = 20  # jobs; below, one INSERT is a round trip less


class Bulk:
    """Jobs that may still be in the making: the server works on one chunk while the producer makes the next, which is
    a third of the time for 100,000. What was made is kept, for another try."""

    def __init__(self, db: PostgresDatabase, queries: Queries, jobs: Iterable[NewJob]) -> None:
        self._db = db
        self._queries = queries
        self._more = iter(jobs)
        self._made = list(itertools.islice(self._more, _CHUNK))
        _, self._timed, self._lined = fastpath.survey(self._made)

    def all(self) -> Sequence[NewJob]:
        """Every job."""
        self._made.extend(self._more)
        return self._made

    def store(self) -> list[Receipt] | None:
        """Receipts, or None if this is no case for COPY: few jobs, keys, or jobs that are there already."""
        if len(self._made) < _WORTH_IT:
            return None
        try:
            self._db.attempt(self._copy)
        except _NoCaseForCopyError:
            return None
        except Exception as e:
            if isinstance(e.__cause__, psycopg.errors.UniqueViolation):
                return None  # sent again after a lost answer, perhaps
            raise
        return [Enqueued(job.id) for job in self._made]

    def _copy(self, conn: PostgresConnection) -> None:
        clock = Step(self._queries.clock, {})
        timed = self._timed or self._lined
        now = pipeline(conn, [clock])[0].fetchall()[0][0] if timed else 0.0
        statement = self._queries.copy_jobs_timed if timed else self._queries.copy_jobs
        statement = self._queries.copy_jobs_lined if self._lined else statement
        encode = lined_rows if self._lined else fastpath.copy_rows
        with conn.transaction(), conn.cursor() as cursor:
            pipeline(conn, [Step(self._queries.no_hurry, {})])
            with cursor.copy(statement.sql) as copy:
                copy.write(_HEAD)
                conn.rest()  # the producer may take its time over each chunk; the server may not
                for chunk in self._chunks():
                    conn.ask()
                    copy.write(encode(chunk, [micros(job, now) for job in chunk] if timed else None))
                    conn.rest()
                conn.ask()
                copy.write(_TAIL)
            if self._ended_before(conn):
                raise _NoCaseForCopyError
            queues = list({job.queue for job in self._made})
            pipeline(conn, [*self._marks(), Step(self._queries.notify, {"queues": queues})])

    def _marks(self) -> list[Step]:
        if not self._lined:
            return []
        return [Step(self._queries.mark_lines, {"queues": list({job.queue for job in self._made if job.line})})]

    def _chunks(self) -> Iterator[list[NewJob]]:
        at = 0
        while True:
            if at == len(self._made):
                self._made.extend(itertools.islice(self._more, _CHUNK))
            chunk = self._made[at : at + _CHUNK]
            if not chunk:
                return
            keyed, timed, lined = fastpath.survey(chunk)
            if keyed or (timed and not self._timed and not self._lined) or (lined and not self._lined):
                raise _NoCaseForCopyError
            at += len(chunk)
            yield chunk

    def _ended_before(self, conn: PostgresConnection) -> bool:
        """Whether a job of this bulk is in history: then it is sent again, and must not run again."""
        ids = [job.id for job in self._made]
        span = {"first": min(ids, key=_number), "last": max(ids, key=_number)}
        if not pipeline(conn, [Step(self._queries.ended_between, span)])[0].fetchall()[0][0]:
            return False
        exact = {"ids": packed_ids(sorted(ids, key=_number))}
        return bool(pipeline(conn, [Step(self._queries.ended_already, exact)])[0].fetchall()[0][0])


class _NoCaseForCopyError(Exception):
    """The jobs go the slower way."""


_number = operator.attrgetter("int")  # comparing UUIDs themselves costs 1 µs apiece
