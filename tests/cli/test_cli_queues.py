"""Queues from the shell: settings, counts, pause, retention."""

from __future__ import annotations

import pytest

from forge import Forge
from forge.errors import ExitCode
from forge.inline import drain
from tests.cli.conftest import Shell

pytestmark = pytest.mark.impl_free


def test_settings_are_set_by_name_and_shown(forge: Shell, url: str) -> None:
    line = forge.ok("queue", "set", "mail", "max_workers=4", "retain_done_days=0.5", "throttle=hint", "--database", url)
    assert line.startswith("mail: max_workers=4 paused=false ")
    assert "throttle=hint retain_done_days=0.5 retain_dead_days=30\n" in line
    assert "paused=true" in forge.ok("queue", "pause", "mail", "--database", url)
    (found,) = forge("queues", "-o", "json", "--database", url).json
    assert (found["name"], found["max_workers"], found["paused"]) == ("mail", 4, True)
    assert "paused=false" in forge.ok("queue", "resume", "mail", "--database", url)
    assert forge("queue", "set", "mail", "backoff_enabled=on", "-o", "json", "--database", url).json["backoff_enabled"]


def test_a_value_out_of_range_is_refused(forge: Shell, url: str) -> None:
    assert "max_workers" in forge.fails(ExitCode.USAGE, "queue", "set", "mail", "max_workers=-1", "--database", url)
    assert "comma" in forge.fails(ExitCode.USAGE, "queue", "pause", "a,b", "--database", url)


def test_the_table_counts_live_and_ended_jobs(forge: Shell, url: str) -> None:
    assert forge.ok("queues", "--database", url).startswith("no queues")
    with Forge(url) as app:
        work = app.task(name="work", queue="a")(lambda: None)
        work.enqueue()
        drain(app)
        work.enqueue()
        work.using(delay=60).enqueue()
        app.enqueue("k", {}, queue="b").cancel()
        app.storage.set_queue("b", paused=True)
    head, a, b = forge.ok("queues", "--database", url).splitlines()
    columns = [
        "queue",
        "workers",
        "pending",
        "scheduled",
        "running",
        "failed",
        "done",
        "dead",
        "cancelled",
        "oldest",
        "state",
    ]
    assert head.split() == columns
    assert a.split()[:9] == ["a", "1", "1", "1", "0", "0", "1", "0", "0"]
    assert b.split() == ["b", "1", "0", "0", "0", "0", "0", "0", "1", "-", "paused,", "nobody", "serves", "it"]


def test_a_queue_that_no_pod_serves_is_told_of(forge: Shell, url: str) -> None:
    with Forge(url) as app:
        app.enqueue("k", {}, queue="a")
        app.storage.set_queue("b")
        app.storage.register("ada", ["b"], "north", 4711)
    _, a, b = forge.ok("queues", "--database", url).splitlines()
    assert a.endswith("open, nobody serves it")
    assert b.endswith("open")
    assert [queue["served"] for queue in forge("queues", "-o", "json", "--database", url).json] == [False, True]


def test_a_queue_that_cools_down_says_until_when(forge: Shell, url: str) -> None:
    from forge import Throttled

    with Forge(url) as app:
        app.task(name="busy")(lambda: Throttled()).enqueue()
        drain(app)
    assert "cooling down, again in " in forge.ok("queues", "--database", url)


def test_prune_deletes_what_is_past_retention(forge: Shell, url: str) -> None:
    with Forge(url) as app:
        for n in range(5):
            app.enqueue("k", n, queue="short").cancel()
            app.enqueue("k", n, queue="long").cancel()
        app.storage.set_queue("short", retain_dead_days=0)
    assert forge.ok("prune", "--batch", "2", "--database", url) == "deleted 5 of 10 ended jobs old enough to look at\n"
    assert forge("prune", "-o", "json", "--database", url).json["deleted"] == 0
