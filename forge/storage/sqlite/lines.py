"""Lines on SQLite: the walk along them step by step in one write transaction. PostgreSQL's `claim_lines` tells why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from forge import fastpath
from forge.job import Claim
from forge.storage.contract import Incarnation
from forge.storage.contract.lines import FIRST, LineLevel, Turn
from forge.storage.shared.statements import Queries
from forge.storage.shared.walking import WalkedLines, chains_of, steps_for
from forge.storage.sqlite.drivers import SqliteConnection
from forge.storage.sqlite.facet import SqliteFacet

__all__ = ["SqliteLineStore"]

_LAST_PRIORITY = 32_767
_PAYLOAD = 4  # where it is in the columns of a claim


class Head(NamedTuple):
    """The first waiting job of one priority of one line."""

    line: str
    priority: int
    run_at: int
    scope: str | None
    key: str | None
    most: int | None


@dataclass(slots=True)
class WalkStep:
    """A step of the walk."""

    level: LineLevel
    head: Head
    tokens: int
    free: Sequence[int] | None  # places of its key; None: it has none
    due: bool
    rows: list[int] = field(default_factory=list)  # of due jobs, its line's share at most

    @property
    def open(self) -> bool:
        return self.tokens > 0 and self.free != ()

    @property
    def limited(self) -> bool:
        return self.head.key is not None or self.head.scope is not None

    @property
    def on(self) -> LineLevel:
        """Where the walk goes on: behind all lines that share what this one cannot get."""
        if self.open:
            return self.level
        parts = self.head.line.split("|")
        return ("|".join(parts[:1] if self.tokens == 0 else parts[:2]) + "}", _LAST_PRIORITY)


class Choice(NamedTuple):
    """A job to be claimed; sorts in the order of turns."""

    round: int
    priority: int
    i: int  # the step
    row: int
    step: WalkStep


class SqliteLineStore(SqliteFacet, WalkedLines):
    """See `LineStore`."""

    def queues(self) -> set[str]:
        return {queue for (queue,) in self._reader.read(lambda conn: conn.rows(self._sql.line_queues.sql))}

    def hand_over(self, last: Claim, heir: Claim) -> bool:
        names = [{"id": claim.id.bytes, "token": claim.token} for claim in (last, heir)]
        with self._writer.writing() as (conn, _):
            places = [place for name in names for (place,) in conn.rows(self._sql.place_of.sql, name)]
            if len(places) < 2 or not places[0] or places[1] is not None:
                return False
            for name, place in zip(names, (None, places[0]), strict=True):
                conn.rows(self._sql.change_place.sql, {**name, "place": place})
            return True

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
        # Without a wait for the disk, also for places: what undoes it, a failure of the machine, ends the jobs too.
        with self._writing(durable=False) as (conn, now):
            params = {"queue": queue, "pod": who.pod.id, "now": now}
            if not conn.rows(self._sql.lines_open.sql, params):
                return Turn([], {}, None, True, frozenset(), False, 0, False, [])
            return _Walk(conn, self._sql, queue, now, n, allowed, behind).turn(who, most_bytes, *way)


class _Walk:
    """One walk along the lines of a queue."""

    def __init__(
        self,
        conn: SqliteConnection,
        sql: Queries,
        queue: str,
        now: int,
        n: int,
        allowed: Mapping[str, int] | None,
        behind: int,
    ) -> None:
        self._conn, self._sql, self._queue, self._now, self._n, self._allowed = conn, sql, queue, now, n, allowed
        self._behind = behind
        self._share = 0  # of each line
        self._places: dict[tuple[str, int | None], Sequence[int]] = {}  # free ones, by key and limit

    def turn(self, who: Incarnation, most_bytes: int, after: LineLevel, last: LineLevel) -> Turn:
        """Walk, share out, claim."""
        most = steps_for(self._n)
        steps = list(self._steps(after, last, most))
        choices = self._choices([step for step in steps if step.due])
        token = who.mint()
        chosen, claims = [], []
        for choice, place in self._granted(choices):
            chosen.append((choice, place))
            claims.append(self._claim(token, choice))
            most_bytes -= len(claims[-1][_PAYLOAD].encode())
            if most_bytes <= 0:
                break
        # The last one of those that share a place has it.
        for (_, place), choice in {(choice.step.head.key, place): choice for choice, place in chosen if place}.items():
            self._conn.rows(self._sql.give_place.sql, {"row": choice.row, "place": place})
        made = fastpath.claims(claims, token, self._queue)
        around = len(steps) < most
        seen = {choice.step.head.line for choice in choices}
        return Turn(
            claims=made,
            spent=Counter(scope for choice, _ in chosen if (scope := choice.step.head.scope) is not None),
            after=self._end(steps, seen - {choice.step.head.line for choice, _ in chosen}, after, around),
            around=around,
            empty=frozenset(s.head.scope for s in steps if s.head.scope is not None and s.tokens == 0),
            closed=any(not step.open or (step.due and step.limited) for step in steps),
            seen=len(seen),
            hungry=any(choice.round >= self._share for choice in choices),
            chains=chains_of(made, [(choice.step.head.key, place) for choice, place in chosen]),
        )

    def _steps(self, after: LineLevel, last: LineLevel, most: int) -> Iterator[WalkStep]:
        """From behind `after` to the end, and then from the beginning to `last`, unless that is on the way."""
        at, wrapped = after, after < last
        for _ in range(most):
            head = self._head(at)
            if head is None and not wrapped:
                at, wrapped = FIRST, True
                head = self._head(at)
            if head is None or (wrapped and (head.line, head.priority) > last):
                return
            step = WalkStep((head.line, head.priority), head, self._tokens(head), self._free(head), False)
            step.due = step.open and head.run_at <= self._now
            yield step
            at = step.on

    def _head(self, at: LineLevel) -> Head | None:
        found = self._rows("next_head", line=at[0], priority=at[1])
        return Head(*found[0]) if found else None

    def _tokens(self, head: Head) -> int:
        if head.scope is None or self._allowed is None:
            return self._n
        return self._allowed.get(head.scope, 0)

    def _free(self, head: Head) -> Sequence[int] | None:
        if head.key is None or head.most is None:
            return None
        found = self._places.get((head.key, head.most))
        if found is None:
            taken = {place for (place,) in self._rows("places_taken", key=head.key)}
            free = [place for place in range(1, head.most + 1) if place not in taken]
            found = self._places[head.key, head.most] = tuple(free[: max(head.most - len(taken), 0)])
        return found

    def _choices(self, due: Sequence[WalkStep]) -> list[Choice]:
        """Due jobs in the order of turns, an even share of each line."""
        self._share = share = -(-self._n // max(len({step.head.line for step in due}), 1))
        had: Counter[str] = Counter()
        choices = []
        for i, step in enumerate(due):
            line, priority = step.level
            limit = min(share - had[line], step.tokens, self._room(step) if step.free is not None else share)
            for (row,) in self._rows("due_in_line", line=line, priority=priority, n=limit) if limit > 0 else ():
                had[line] += 1
                choices.append(Choice(had[line], priority, i, row, step))
        choices.sort(key=lambda choice: choice[:4])
        return choices

    def _granted(self, choices: Sequence[Choice]) -> list[tuple[Choice, int]]:
        """Those for which there are places and tokens, with the place, which may be another's too; n at most."""
        tokens: Counter[str | None] = Counter()
        places: defaultdict[str | None, int] = defaultdict(int)
        granted: list[tuple[Choice, int]] = []
        for choice in choices:
            head, free = choice.step.head, choice.step.free
            spent, used = tokens[head.scope], places[head.key]
            if (head.scope is not None and spent >= choice.step.tokens) or (
                free is not None and used >= self._room(choice.step)
            ):
                continue
            tokens[head.scope] += 1
            places[head.key] += 1
            granted.append((choice, free[used % len(free)] if free is not None else 0))
        return granted[: self._n]

    def _room(self, step: WalkStep) -> int:
        """Jobs that its free places are enough for."""
        return len(step.free or ()) * self._behind

    def _claim(self, token: int, choice: Choice) -> tuple[Any, ...]:
        params = {"token": token, "now": self._now, "row": choice.row}
        return self._conn.rows(self._sql.claim_in_line.sql, params)[0]

    @staticmethod
    def _end(steps: Sequence[WalkStep], passed: set[str], after: LineLevel, around: bool) -> LineLevel:
        """Before the first line that was open and got nothing, else behind the last that was open."""
        last = after
        for before, step in zip([after, *(each.level for each in steps)], steps, strict=False):
            if step.head.line in passed:
                return before
            if step.open or not around:
                last = step.level
        return last

    def _rows(self, name: str, /, **params: Any) -> list[tuple[Any, ...]]:
        query = getattr(self._sql, name)
        given = {"queue": self._queue, "now": self._now, **params}
        return self._conn.rows(query.sql, {key: given[key] for key in query.names})
