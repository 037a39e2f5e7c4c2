"""A mixed batch of endings as statements: one for all that are done, one for all others, more only where needed."""

from __future__ import annotations

import itertools
import struct
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from psycopg.pq.abc import PGresult

from forge import fastpath
from forge.codec import clean_text
from forge.job import Cancelled, Dead, Done, Ending, Failed, Outcome, Released, Snooze, Status, Throttled
from forge.storage.contract import Fates, Step
from forge.storage.postgres.wire import Float8Array, Int8Array, TextArray, UuidArray, rows_of
from forge.storage.shared.endings import THROTTLE_GRACE_SECONDS, longest_hint, spares_queue
from forge.storage.shared.statements import Queries

__all__ = ["PostgresEndings"]


class PostgresEndings:
    """One finalize: its statements, and which of its endings proved stale once they have run."""

    def __init__(self, queries: Queries, endings: Sequence[Ending], max_crashes: int) -> None:
        self._queries = queries
        self._max_crashes = max_crashes
        self.plain: list[Ending] = []  # done, without a result
        self.kept: list[Ending] = []  # done, with one
        self.other: list[Ending] = []
        self.stale: list[Ending] = []
        self.fates: Fates = []  # of the others
        self._packed = fastpath.plain_endings(endings, True)
        if self._packed is None:
            self._split(endings)
        else:
            self.plain = list(endings)

    def count(self, endings: Sequence[Ending]) -> Mapping[int, int]:
        """How many of them are of each pod."""
        return self._packed[3] if self._packed is not None else Counter(e.claim.token >> 32 for e in endings)

    def _split(self, endings: Sequence[Ending]) -> None:
        """Sort by kind and id (two transactions must lock rows in one order); a claim's second ending is stale."""
        last = None
        for ending in sorted(endings, key=_order):
            this = _order(ending)
            if this == last:
                self.stale.append(ending)
            else:
                last = this
                if type(ending.outcome) is not Done:
                    self.other.append(ending)
                elif ending.result is None:
                    self.plain.append(ending)
                else:
                    self.kept.append(ending)

    def steps(self) -> list[Step]:
        """What to run, in order, in one transaction."""
        found = []
        if self.plain:
            found.append(Step(self._queries.finalize_done, _done_params(self.plain, self._packed)))
        if self.kept:
            results = TextArray(fastpath.text_array([e.result for e in self.kept]))
            found.append(Step(self._queries.finalize_done_results, _done_params(self.kept) | {"results": results}))
        if self.other:
            found += self._cool_downs()
            found.append(Step(self._queries.finalize_other, self._other_params()))
        keyed = [e for endings in (self.plain, self.kept, self.other) for e in endings if e.claim.keyed]
        if keyed:
            found.append(Step(self._queries.settle_keys, {"ids": _ids(keyed)}))
        back = {e.claim.queue for e in self.other if isinstance(e.outcome, Released) and not e.delay}
        if back:  # they may run at once, and perhaps not here
            found.append(Step(self._queries.notify_back, {"queues": _texts(sorted(back))}))
        return found

    def read(self, results: Sequence[PGresult]) -> None:
        """Learn from the answers which endings were stale."""
        answers = iter(results)
        for endings in (self.plain, self.kept):
            if endings:
                answer = next(answers)
                if answer.get_value(0, 0) != len(endings).to_bytes(8, "big"):
                    _, ids, tokens = rows_of(answer)[0]
                    self._missing(endings, set(zip(ids, tokens, strict=True)))
        if self.other:
            judged = rows_of(next(itertools.islice(answers, self._cool_down_count, None)))
            became = {(id_, token): Status(status) for id_, token, status in judged}
            self.fates = [(e, became[key]) for e in self.other if (key := (e.claim.id, e.claim.token)) in became]
            self._missing(self.other, set(became))

    def _missing(self, endings: Sequence[Ending], ours: set[tuple[Any, ...]]) -> None:
        self.stale += [e for e in endings if (e.claim.id, e.claim.token) not in ours]

    def _other_params(self) -> dict[str, Any]:
        said = [_describe(e) for e in self.other]
        return {
            "ids": _ids(self.other),
            "claims": _tokens(self.other),
            "outcomes": _texts(word for word, _, _ in said),
            "delays": _floats([delay for _, delay, _ in said]),
            "messages": _texts(message and clean_text(message) for _, _, message in said),
            "tracebacks": _texts(e.traceback and clean_text(e.traceback) for e in self.other),
            "give_ups": _floats(
                [e.outcome.give_up_after if isinstance(e.outcome, Released) else None for e in self.other]
            ),
            "max_crashes": self._max_crashes,
        }

    def _cool_downs(self) -> list[Step]:
        groups: dict[tuple[str, bool], list[Ending]] = defaultdict(list)
        for ending in self.other:
            if isinstance(ending.outcome, Throttled):
                groups[ending.claim.queue, spares_queue(ending.outcome)].append(ending)
        found = []
        for (queue, job_only), endings in sorted(groups.items()):  # by queue name: lock order again
            params = {
                "queue": queue,
                "job_only": job_only,
                "hint": longest_hint(endings),
                "ids": _ids(endings),
                "claims": _tokens(endings),
            }
            found += [Step(self._queries.ensure_queue, params), Step(self._queries.cool_down, params)]
        self._cool_down_count = len(found)
        return found


def _done_params(endings: Sequence[Ending], packed: fastpath.Plain | None = None) -> dict[str, Any]:
    if packed is not None:
        ids, tokens, queues = UuidArray(packed[0]), Int8Array(packed[1]), packed[2]
    else:
        ids, tokens, queues = _ids(endings), _tokens(endings), {e.claim.queue for e in endings}
    return {"ids": ids, "claims": tokens, "n": len(endings), "queues": _texts(queues), "grace": THROTTLE_GRACE_SECONDS}


def _floats(values: Sequence[float | None]) -> Float8Array:
    parts = [b"\xff\xff\xff\xff" if value is None else struct.pack(">id", 8, value) for value in values]
    return Float8Array(struct.pack(">iiiii", 1, None in values, 701, len(values), 1) + b"".join(parts))


def _texts(values: Iterable[str | None]) -> TextArray:
    return TextArray(fastpath.text_array(list(values)))


def _order(ending: Ending) -> tuple[int, int]:
    claim = ending.claim
    return claim.id.int, claim.token  # the number: comparing UUIDs themselves costs 1 µs a job


def _ids(endings: Sequence[Ending]) -> UuidArray:
    return UuidArray(fastpath.uuid_array([e.claim.id for e in endings]))


def _tokens(endings: Sequence[Ending]) -> Int8Array:
    return Int8Array(fastpath.int8_array([e.claim.token for e in endings]))


def _describe(ending: Ending) -> tuple[str, float | None, str | None]:
    """(word, seconds until it may run again, message) as `finalize_other` takes them."""
    outcome: Outcome = ending.outcome
    match outcome:
        case Failed():
            return "failed", ending.delay, outcome.message
        case Dead():
            return "dead", None, outcome.message
        case Cancelled():
            return "cancelled", None, outcome.message
        case Throttled():
            return "throttled", outcome.retry_after if spares_queue(outcome) else None, None
        case Snooze():
            return "snoozed", outcome.seconds, None
        case Released():
            return "crashed" if outcome.crashed else "released", ending.delay, outcome.message
    raise TypeError(f"not an outcome: {outcome!r}")
