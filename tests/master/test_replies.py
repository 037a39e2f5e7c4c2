"""Replies that no worker should send: the job they are about ends, in words, and nothing else is touched."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from forge.job import Status
from forge.job_messages import ending_of, seconds_taken
from tests.worker.test_inline import claim

from .conftest import TASKS, Project, eventually

ID = "00" * 15 + "09"
GOOD = {"id": ID, "kind": "k", "payload": [1]}

BAD: list[dict[str, Any]] = [
    {},
    {"status": "blue"},
    {"status": ["ok"]},
    {"status": None},
    {"status": "snoozed"},
    {"status": "snoozed", "seconds": None},
    {"status": "snoozed", "seconds": "abc"},
    {"status": "snoozed", "seconds": -1},
    {"status": "snoozed", "seconds": True},
    {"status": "throttled", "retry_after": "30"},
    {"status": "throttled", "retry_after": [1]},
    {"status": "throttled", "job_only": "yes"},
    {"status": "error", "message": 404},
    {"status": "error", "message": {"a": 1}},
    {"status": "error", "delay": "soon"},
    {"status": "error", "delay": -1},
    {"status": "error", "traceback": 7},
    {"status": "error", "error_type": []},
    {"status": "dead", "message": False},
    {"status": "released", "give_up_after": "never"},
    {"status": "ok", "children": 5},
    {"status": "ok", "children": {"a": 1}},
    {"status": "ok", "children": [5]},
    {"status": "ok", "children": [{}]},
    {"status": "ok", "children": [{**GOOD, "id": "x"}]},
    {"status": "ok", "children": [{**GOOD, "id": 5}]},
    {"status": "ok", "children": [{**GOOD, "priority": 10**6}]},
    {"status": "ok", "children": [{**GOOD, "queue": None}]},
    {"status": "ok", "children": [{**GOOD, "run_at": "tomorrow"}]},
    {"status": "ok", "children": [{**GOOD, "run_at": "2024-01-01T00:00:00"}]},
    {"status": "ok", "children": [{**GOOD, "tags": 5}]},
    {"status": "ok", "children": [{**GOOD, "line": ["a", 5]}]},
    {"status": "ok", "children": [{**GOOD, "line": [1, 2, 3, 4]}]},
    {"status": "ok", "children": [{**GOOD, "surprise": 1}]},
    {"status": "ok", "result": "\0"},
]


@pytest.mark.parametrize("reply", BAD, ids=lambda reply: orjson.dumps(reply).decode()[:60])
def test_a_reply_that_is_wrong_in_any_field_is_refused_as_a_value(reply: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        ending_of({"id": ID, **reply}, claim())


@pytest.mark.parametrize("took", ["x", -1, [], True, {}])
def test_a_time_taken_that_is_none_is_refused(took: Any) -> None:
    with pytest.raises(ValueError):
        seconds_taken({"took": took})


FORGE = '''

@app.handler("forge")
def forged(ctx, payload):
    """Sends this instead of its reply."""
    import orjson
    ctx._link._send(orjson.dumps({"id": ctx.id.hex, "took": 0.0, **payload}) + b"\\n")
    time.sleep(600)
'''


def test_the_job_of_a_wrong_reply_fails_in_words_and_the_others_are_done(project: Project) -> None:
    (project.folder / "tasks.py").write_text(TASKS + FORGE)
    pod = project.start()
    bad = [{"status": "blue"}, {"status": "snoozed", "seconds": None}, {"status": "error", "took": "long"}]
    bad += [{"status": "ok", "children": [5]}, {"status": "error", "message": 404}]
    wrong: list[Any] = [project.app.enqueue("forge", reply, max_attempts=1) for reply in bad]
    right: list[Any] = [project.enqueue("add", n, 1) for n in range(50)]
    assert [job.result(timeout=60) for job in right] == [n + 1 for n in range(50)]
    eventually(lambda: all(job.status is Status.DEAD for job in wrong))
    for job in wrong:
        assert job.job().last_error.startswith("the worker's reply could not be understood: ")
    assert pod.says("broke the protocol")
    assert project.app.storage.counts() == {}
    assert pod.stop() == 0
