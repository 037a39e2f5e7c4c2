"""Any bytes from any child: no exception leaves the reading side, nobody is killed by a number that a child made up,
and every job is in one place or has one ending."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge.config.model import QueueConfig
from forge.job import Line, NewJob
from forge.job_messages import new_job_of, record_of
from forge.master.message_checks import schedule
from forge.master.workers import requests
from forge.storage.contract.schedules import NewSchedule

from .readers import (
    DONE,
    ODD,
    PROGRAM,
    PROGRAM_LINES,
    WORKER,
    WORKER_LINES,
    ZYGOTE,
    ZYGOTE_LINES,
    PoolRig,
    WorkerRig,
    ZygoteRig,
    no_kills,
)

values = st.recursive(
    st.sampled_from(ODD)
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def deep(n: int) -> bytes:
    return b"[" * n + b"]" * n


def mutated(lines: list[dict[str, Any]]) -> st.SearchStrategy[bytes]:
    """A message that there is, with a field changed, added or taken away; or cut, or with bytes in it."""

    @st.composite
    def make(draw: Callable[..., Any]) -> bytes:
        message = dict(draw(st.sampled_from(lines)))
        for _ in range(draw(st.integers(0, 2))):
            name = draw(st.sampled_from([*message, *(name for line in lines for name in line)]))
            what = draw(st.sampled_from(["odd", "gone", "nested"]))
            if what == "gone":
                message.pop(name, None)
            elif what == "nested" and isinstance(message.get(name), list) and message[name]:
                inner = message[name][0]
                if isinstance(inner, dict):
                    key = draw(st.sampled_from([*inner, "more"]))
                    message[name] = [{**inner, key: draw(values)}]
            else:
                message[name] = draw(values)
        data = json.dumps(message).encode()
        if draw(st.integers(0, 3)) == 0:
            at = draw(st.integers(0, len(data)))
            data = data[:at] + draw(st.binary(max_size=5)) + data[at + draw(st.integers(0, 3)) :]
        return data + b"\n"

    return make()


def streams(lines: list[dict[str, Any]], *more: bytes) -> st.SearchStrategy[list[bytes]]:
    """What a child writes, in pieces of any length."""
    usual = st.sampled_from([json.dumps(line).encode() + b"\n" for line in lines])
    raw = st.binary(max_size=60) | st.sampled_from(
        [b"[]\n", b'"x"\n', b"null\n", b"\n", b"{}\n", b"\xff\xfe\n", deep(2000) + b"\n", deep(900) + b"\n", *more]
    )
    parts = st.lists(usual | mutated(lines) | raw, min_size=1, max_size=6)

    @st.composite
    def cut(draw: Callable[..., Any]) -> list[bytes]:
        data = b"".join(draw(parts))
        places = sorted(draw(st.lists(st.integers(0, len(data)), max_size=4)))
        return [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]

    return cut()


fuzz = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@fuzz
@given(pieces=streams(WORKER_LINES, DONE), hello=st.booleans(), threads=st.booleans())
def test_a_worker_may_say_anything(pieces: list[bytes], hello: bool, threads: bool) -> None:
    kind = QueueConfig(max_workers=1, worker="threads", concurrency=5) if threads else None
    with no_kills() as killed:
        rig = WorkerRig(3 if hello else 0, settings=kind, hello=hello)
        for piece in pieces:
            rig.write(piece)
            rig.check()
        assert 1 <= rig.slot.capacity <= (5 if threads else 1)
        rig.end()
        rig.close()
    assert set(killed) <= {WORKER}


@fuzz
@given(pieces=streams(ZYGOTE_LINES), coming=st.booleans())
def test_a_zygote_may_say_anything(pieces: list[bytes], coming: bool) -> None:
    with no_kills() as killed:
        rig = ZygoteRig(coming=coming)
        for piece in pieces:
            rig.write(piece)
            rig.check()
        rig.end()
        rig.close()
    assert set(killed) <= {WORKER, PROGRAM, ZYGOTE}


def test_a_zygote_that_names_a_process_that_is_not_its_own_is_killed_and_not_that_process() -> None:
    for message in ({"forked": "q/9", "serial": 1, "pid": os.getpid()}, {"started": 1, "pid": os.getpid()}):
        with no_kills() as killed:
            rig = ZygoteRig(coming=False)
            rig.write(json.dumps(message).encode() + b"\n")
            assert rig.zygote.gone and rig.zygote.process.killed
            rig.end()
            rig.close()
        assert os.getpid() not in killed


def test_a_worker_that_says_to_be_another_process_is_killed_and_not_that_process() -> None:
    with no_kills() as killed:
        rig = WorkerRig(0, hello=False)
        rig.write(b'{"hello":%d,"capacity":1}\n' % os.getpid())
        assert not rig.slot.ready and rig.slot.killed_for is not None
        rig.close()
    assert killed == [WORKER]


def test_a_worker_may_greet_before_the_zygote_has_told_of_it() -> None:
    with no_kills() as killed:
        rig = WorkerRig(0, hello=False)
        rig.slot.pid = 0
        rig.write(b'{"hello":%d,"capacity":1}\n' % WORKER)
        assert rig.slot.greeted_as and not rig.slot.ready
        rig.workers.heard(rig.zygote, {"forked": "q/0", "serial": rig.slot.serial, "pid": WORKER})
        assert rig.queue.slots[0].ready and not killed
        rig.workers.heard(rig.zygote, {"forked": "q/0", "serial": 77, "pid": PROGRAM})  # of one that nobody waits for
        assert killed == [PROGRAM]
        rig.close()


@fuzz
@given(pieces=streams(PROGRAM_LINES), reads=st.lists(st.booleans(), min_size=10, max_size=10))
def test_a_program_may_write_anything(pieces: list[bytes], reads: list[bool]) -> None:
    with no_kills() as killed:
        rig = PoolRig()
        for piece, read in zip(pieces, reads, strict=False):
            if read:
                rig.read_job()
            rig.write(piece)
            rig.check()
            rig.turn()
            rig.check()
        rig.close()
    assert set(killed) <= {PROGRAM}


@pytest.mark.parametrize("status", ["error", "ok", "throttled"])
@pytest.mark.parametrize("field", ["message", "id", "retry_after_secs", "result"])
def test_a_program_may_nest_what_it_writes_as_deep_as_it_likes(status: str, field: str) -> None:
    line = b'{"status":"%b","%b":%b}\n' % (status.encode(), field.encode(), deep(1000))
    with no_kills():
        rig = PoolRig()
        rig.read_job()
        rig.write(line)
        rig.check()
        rig.close()


def test_the_end_of_a_line_that_has_none_costs_no_job_that_was_done_before_it() -> None:
    with no_kills() as killed:
        rig = WorkerRig(3)
        rig.write(DONE + b"x" * (17 * 1024 * 1024))
        assert killed == [WORKER] and len(rig.books.endings) == 2
        rig.end()
        rig.close()


def test_an_error_that_nobody_expected_costs_one_child_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    with no_kills(bugs=True) as killed:
        for _ in range(2):
            rig = WorkerRig(1)
            rig.requests.progress = lambda *_: 1 / 0  # type: ignore[method-assign,assignment]
            rig.write(json.dumps(WORKER_LINES[11]).encode() + b"\n")
            rig.end()
            rig.close()
    assert killed.count(WORKER) >= 2
    (said,) = (found for found in caplog.records if "which is a bug in forge" in found.getMessage())
    assert said.exc_info is not None and said.exc_info[0] is ZeroDivisionError


def test_what_keeps_to_the_rules_is_taken_as_it_was_meant() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    line = Line("slack|k:7|", "slack", "k:7", 2)
    full = NewJob(
        UUID(int=9), "k", b'{"a":[1,2.5,null]}', "q", -3, when, 0.0, 7, 60, "key", 30, "push", ("a", "b"), 90, line
    )
    later = NewJob(UUID(int=10), "k", b"null", delay=2.5, unique_for=5)
    for job in (full, later):
        assert new_job_of(orjson.loads(orjson.dumps(record_of(job)))) == job
    plain = NewSchedule(name="n", expression="0 3 * * *", kind="k")
    whole = NewSchedule(
        name="m",
        expression="0 3 * * *",
        kind="k",
        payload=b'{"a":1}',
        timezone="Europe/Berlin",
        queue="q",
        priority=2,
        max_attempts=3,
        timeout=4,
        keep_result=5,
        dedupe_key="cron:m",
        unique_for=6,
        tags=("a",),
        catch_up="all",
        jitter=1.5,
        source="config",
        line=line,
        project="p",
    )
    for known in (plain, whole):
        assert schedule(orjson.loads(orjson.dumps(known.as_message()))) == known


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("queue", "a,b"),
        ("kind", ""),
        ("priority", 2**40),
        ("payload", "\0"),
        ("tags", ["\0"]),
        ("delay", -1),
        ("id", "x"),
    ],
)
def test_a_job_that_cannot_be_stored_is_refused_and_its_worker_lives(field: str, value: object) -> None:
    with no_kills() as killed:
        rig = WorkerRig(1)
        record = {"id": "0" * 32, "kind": "k", "payload": 1, field: value}
        rig.write(orjson.dumps({"ask": 5, "for": "enqueue", "jobs": [record]}) + b"\n")
        rig.slot.flush()
        *_, said = rig.theirs.recv(65_536).splitlines()
        assert orjson.loads(said)["answer"] == 5 and field.removesuffix("s") in orjson.loads(said)["error"]
        rig.close()
    assert not killed


def test_a_worker_that_asks_and_never_listens_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "MAX_LINE", 100_000)
    with no_kills() as killed:
        rig = WorkerRig(1)
        line = orjson.dumps({"ask": 5, "for": "enqueue", "jobs": [{"id": "x" * 60, "kind": "k", "payload": 1}]}) + b"\n"
        while not killed:
            rig.write(line * 100)
            rig.slot.flush()  # as the loop does
        assert killed == [WORKER]
        rig.end()
        rig.close()
