"""What a worker does with jobs and orders, in each of the three kinds. Real processes, real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from forge import Cancelled, Context, Forge, Interrupted, Throttled
from tests.master.conftest import alive, eventually
from tests.worker.conftest import Drive, Gate

KINDS: list[dict[str, Any]] = [
    {"worker": "process"},
    {"worker": "threads", "concurrency": 3},
    {"worker": "async", "concurrency": 3},
]


@pytest.fixture(params=KINDS, ids=lambda kind: str(kind["worker"]))
def settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


def test_jobs_of_def_and_async_def_are_run_and_replied(app: Forge, drive: Drive, settings: dict[str, Any]) -> None:
    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="later")
    async def later(n: int) -> list[int]:
        await asyncio.sleep(0)
        return [n]

    @app.task(name="fail", backoff="none")
    def fail() -> None:
        raise ValueError("no luck")

    worker = drive(app, **settings)
    first, second, third = worker.job("add", args=(2, 3)), worker.job("later", args=(7,)), worker.job("fail")
    assert worker.reply(first) | {"took": 0} == {"id": first, "status": "ok", "took": 0, "result": 5}
    assert worker.reply(second)["result"] == [7]
    failed = worker.reply(third)
    assert (failed["status"], failed["message"]) == ("error", "ValueError: no luck")
    assert "runners.py" not in failed["traceback"] and "steps.py" not in failed["traceback"]
    worker.order("drain")
    assert worker.wait() == 0


def test_a_def_handler_of_a_process_worker_runs_in_the_main_thread(app: Forge, drive: Drive) -> None:
    app.task(name="where")(lambda: threading.current_thread() is threading.main_thread())
    worker = drive(app)
    assert worker.reply(worker.job("where"))["result"] is True


@pytest.mark.parametrize("settings", KINDS[1:], ids=lambda kind: str(kind["worker"]), indirect=True)
def test_as_many_run_at_once_as_it_has_room_for(app: Forge, drive: Drive, settings: dict[str, Any], gate: Gate) -> None:
    @app.task(name="meet")
    def meet(n: int) -> int:
        gate.begun(n)
        gate.wait()
        return n

    worker = drive(app, **settings)
    ids = [worker.job("meet", args=(n,)) for n in range(3)]
    for n in range(3):
        gate.until_begun(n)
    gate.open()
    assert [worker.reply(id)["result"] for id in ids] == [0, 1, 2]


def test_async_handlers_of_one_worker_share_a_loop(app: Forge, drive: Drive, settings: dict[str, Any]) -> None:
    @app.task(name="loop")
    async def loop() -> int:
        return id(asyncio.get_running_loop())

    worker = drive(app, **(settings | ({"concurrency": 1} if settings["worker"] == "threads" else {})))
    results = {worker.reply(worker.job("loop"))["result"] for _ in range(3)}
    assert len(results) == 1


def test_recall_gives_back_what_has_not_started_while_a_handler_runs(app: Forge, drive: Drive, gate: Gate) -> None:
    @app.task(name="wait")
    def wait() -> None:
        gate.begun()
        gate.wait()

    worker = drive(app)
    running = worker.job("wait")
    gate.until_begun()
    waiting = [worker.job("wait") for _ in range(3)]
    worker.order("recall")
    assert [worker.reply(id)["status"] for id in waiting] == ["released"] * 3
    gate.open()
    assert worker.reply(running)["status"] == "ok"
    assert worker.reply(worker.job("wait"))["status"] == "ok", "more may come"


def test_drain_gives_back_finishes_and_leaves(app: Forge, drive: Drive, settings: dict[str, Any], gate: Gate) -> None:
    @app.task(name="wait")
    def wait() -> str:
        gate.begun()
        gate.wait()
        return "finished"

    worker = drive(app, **settings)
    running = worker.job("wait")
    gate.until_begun()
    worker.order("drain")
    late = worker.job("wait")
    assert worker.reply(late)["status"] == "released"
    gate.open()
    assert worker.reply(running)["result"] == "finished"
    assert worker.wait() == 0


def test_the_reply_of_a_short_job_does_not_wait_for_the_long_one_after_it(app: Forge, drive: Drive, gate: Gate) -> None:
    app.task(name="short")(lambda: None)

    @app.task(name="long")
    def long() -> None:
        gate.wait()

    worker = drive(app)
    short, long_one = worker.job("short"), worker.job("long")
    assert worker.reply(short)["status"] == "ok"
    gate.open()
    worker.reply(long_one)


def test_a_def_handler_that_looks_is_cancelled(app: Forge, drive: Drive, settings: dict[str, Any], gate: Gate) -> None:
    @app.handler("poll")
    def poll(ctx: Context, payload: Any) -> None:
        gate.begun()
        gate.wait(ctx)
        ctx.raise_if_cancelled()

    worker = drive(app, **settings)
    id = worker.job("poll", {})
    gate.until_begun()
    worker.order("cancel", id=id, why="cancelled by user")
    reply = worker.reply(id)
    assert (reply["status"], reply["message"]) == ("cancelled", "cancelled by user")


def test_an_async_handler_is_cancelled_by_asyncios_means(
    app: Forge, drive: Drive, settings: dict[str, Any], gate: Gate
) -> None:
    @app.task(name="hang")
    async def hang() -> None:
        gate.begun()
        await asyncio.Event().wait()

    app.task(name="next")(lambda: "runs")
    worker = drive(app, **settings)
    id = worker.job("hang")
    gate.until_begun()
    worker.order("cancel", id=id, why="cancelled by user")
    assert worker.reply(id)["status"] == "cancelled"
    assert worker.reply(worker.job("next"))["result"] == "runs"


@pytest.mark.parametrize(
    ("how", "why", "status"),
    [
        ("done", "cancelled by user", "ok"),
        ("raise", "cancelled by user", "cancelled"),
        ("throttled", "cancelled by user", "cancelled"),
        ("raise", "timeout after 5 s", "error"),
        ("own", "timeout after 5 s", "error"),
        ("done", "timeout after 5 s", "ok"),
        ("raise", "the pod is stopping", "released"),
        ("throttled", "the pod is stopping", "released"),
        ("done", "the pod is stopping", "ok"),
    ],
)
def test_what_a_handler_does_after_it_was_told_to_stop(
    app: Forge, drive: Drive, gate: Gate, how: str, why: str, status: str
) -> None:
    @app.handler("stop")
    def stop(ctx: Context, payload: Any) -> None:
        gate.begun()
        gate.wait(ctx)
        if how == "raise":
            raise KeyError("cleaning up failed")
        if how == "throttled":
            raise Throttled(5)
        if how == "own":
            raise Cancelled

    worker = drive(app)
    id = worker.job("stop", {})
    gate.until_begun()
    ends = {"timeout after 5 s": "failed", "the pod is stopping": "released"}.get(why, "cancelled")
    worker.order("cancel", id=id, why=why, ends=ends)
    reply = worker.reply(id)
    assert reply["status"] == status
    assert reply.get("message") == (None if status in ("ok", "released") else why)
    assert ("delay" in reply) == (status == "error")


def test_a_job_that_has_not_started_is_cancelled_at_once(app: Forge, drive: Drive, gate: Gate) -> None:
    @app.task(name="wait")
    def wait() -> None:
        gate.begun()
        gate.wait()

    worker = drive(app)
    running = worker.job("wait")
    gate.until_begun()
    before, meant, after = (worker.job("wait") for _ in range(3))
    worker.order("cancel", id=meant, why="cancelled by user")
    assert worker.reply(meant)["status"] == "cancelled"
    worker.order("cancel", id="0" * 32, why="nobody knows it")
    gate.open()
    assert [worker.reply(id)["status"] for id in (running, before, after)] == ["ok"] * 3


def test_a_handler_that_does_not_look_is_interrupted(
    app: Forge, drive: Drive, settings: dict[str, Any], gate: Gate
) -> None:
    @app.task(name="deaf")
    def deaf() -> None:
        gate.begun()
        while True:
            time.sleep(0.01)

    app.task(name="next")(lambda: "untouched")
    worker = drive(app, **settings)
    id = worker.job("deaf")
    gate.until_begun()
    worker.order("cancel", id=id, why="timeout after 1 s", ends="failed")
    worker.order("interrupt", id=id)
    reply = worker.reply(id)
    assert (reply["status"], reply["message"]) == ("error", "timeout after 1 s")
    assert "Interrupted" in reply["traceback"]
    assert [worker.reply(worker.job("next"))["result"] for _ in range(5)] == ["untouched"] * 5


def test_a_sleeping_handler_of_a_process_worker_is_woken_by_the_interrupt(app: Forge, drive: Drive, gate: Gate) -> None:
    cleaned = gate._folder / "cleaned"

    @app.task(name="sleep")
    def sleep() -> None:
        try:
            gate.begun()
            time.sleep(3600)
        except Interrupted:
            cleaned.touch()
            raise

    worker = drive(app)
    id = worker.job("sleep")
    gate.until_begun()
    worker.order("interrupt", id=id)
    assert worker.reply(id)["message"] == "Interrupted: told to stop, and went on"
    assert cleaned.exists()


def test_an_interrupt_that_comes_too_late_hits_nobody(app: Forge, drive: Drive, settings: dict[str, Any]) -> None:
    app.task(name="quick")(lambda: "done")
    worker = drive(app, **settings)
    for _ in range(200):
        ids = [worker.job("quick") for _ in range(3)]
        for id in ids:
            worker.order("interrupt", id=id)
    statuses = set()
    for n in range(1, 601):
        reply = worker.reply(f"{n << 64:032x}")
        statuses.add((reply["status"], reply.get("result")))
    assert ("ok", "done") in statuses
    assert all(status == "ok" or result is None for status, result in statuses)
    worker.order("drain")  # not before: it gives back all that has not started
    assert worker.wait() == 0


def test_a_handler_in_the_middle_of_its_progress_is_interrupted_without_breaking_a_line(
    app: Forge, drive: Drive, gate: Gate
) -> None:
    @app.handler("talk")
    def talk(ctx: Context, payload: Any) -> None:
        gate.begun()
        while True:
            ctx.progress(100, "x" * 900)

    worker = drive(app)
    for _ in range(5):
        id = worker.job("talk", {})
        worker.line(say="progress", id=id)
        worker.order("interrupt", id=id)
        assert worker.reply(id)["status"] == "error"


def test_sigterm_from_outside_is_not_for_the_worker(app: Forge, drive: Drive, settings: dict[str, Any]) -> None:
    app.task(name="quick")(lambda: "done")
    worker = drive(app, **settings)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(worker.pid, number)
        assert worker.reply(worker.job("quick"))["result"] == "done"


def test_a_program_that_a_handler_starts_can_be_terminated(app: Forge, drive: Drive) -> None:
    @app.task(name="start")
    def start() -> int:
        child = subprocess.Popen(["sleep", "600"])
        child.terminate()
        return child.wait()

    @app.task(name="fork")
    def fork() -> int:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(writing, b"x")
            time.sleep(600)
            os._exit(0)
        os.read(reading, 1)
        os.kill(pid, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    worker = drive(app)
    assert worker.reply(worker.job("start"))["result"] == -signal.SIGTERM
    assert worker.reply(worker.job("fork"))["result"] == -signal.SIGTERM


def test_stacks_of_all_threads_are_written_to_standard_error(
    app: Forge, drive: Drive, gate: Gate, log_file: Path
) -> None:
    @app.task(name="wait")
    def standing_here() -> None:
        gate.begun()
        gate.wait()

    worker = drive(app)
    id = worker.job("wait")
    gate.until_begun()
    worker.order("stacks")
    file = Path(f"{log_file}.stderr")
    eventually(lambda: "standing_here" in file.read_text())
    assert "worker mail/3 (" in file.read_text()
    gate.open()
    worker.reply(id)


def test_when_the_master_is_gone_so_is_everything(
    app: Forge, drive: Drive, settings: dict[str, Any], gate: Gate
) -> None:
    @app.task(name="spawn")
    def spawn() -> None:
        child = subprocess.Popen(["sleep", "600"])
        (gate._folder / "child").write_text(str(child.pid))
        gate.begun()
        gate.wait()

    worker = drive(app, **settings)
    worker.job("spawn")
    gate.until_begun()
    worker.channel.close()
    assert worker.wait() == -signal.SIGKILL
    child = int((gate._folder / "child").read_text())
    eventually(lambda: not alive(child))


def test_a_forked_child_of_a_handler_does_not_keep_the_channel_open(app: Forge, drive: Drive, gate: Gate) -> None:
    @app.task(name="leave")
    def leave() -> None:
        if os.fork() == 0:
            gate.wait()
            os._exit(0)
        os._exit(9)

    worker = drive(app)
    worker.job("leave")
    assert worker.channel.recv(10) == b"", "its end is seen at once"
    assert worker.wait() == 9
    gate.open()


def test_a_title_shows_the_kind_of_a_job_that_takes_a_while(app: Forge, drive: Drive, gate: Gate) -> None:
    @app.task(name="send_email")
    def send() -> None:
        gate.wait()

    worker = drive(app)
    eventually(lambda: worker.title() == "forge: worker mail/3")
    id = worker.job("send_email")
    eventually(lambda: worker.title() == "forge: worker mail/3 send_email")
    gate.open()
    worker.reply(id)
    eventually(lambda: worker.title() == "forge: worker mail/3")


def test_a_kind_nobody_knows_goes_back_with_the_time_to_give_up(app: Forge, drive: Drive) -> None:
    worker = drive(app, give_up_after=3600.0)
    reply = worker.reply(worker.job("strange"))
    assert (reply["status"], reply["message"]) == ("released", "no handler for kind strange")
    assert reply["give_up_after"] == 3600.0
    assert 5 <= reply["delay"] <= 60


def test_a_reply_that_is_too_long_for_a_line_fails_the_job(app: Forge, drive: Drive) -> None:
    @app.handler("big")
    def big(ctx: Context, payload: Any) -> None:
        for _ in range(20):
            ctx.enqueue("k", "x" * 1_000_000)

    worker = drive(app)
    reply = worker.reply(worker.job("big", {}))
    assert reply["status"] == "error"
    assert "bytes with result, jobs and traceback; the limit is 16,777,216" in reply["message"]


def test_a_worker_that_drains_is_not_stopping_until_the_pod_is(
    app: Forge, drive: Drive, settings: dict[str, Any], gate: Gate
) -> None:
    @app.task(name="look")
    def look(ctx: Context) -> list[bool]:
        gate.begun(1)
        gate.wait()
        before = ctx.stopping
        gate.begun(2)
        while not ctx.stopping:
            time.sleep(0.01)
        return [before, ctx.stopping, ctx.cancelled]

    worker = drive(app, **settings)
    id = worker.job("look")
    gate.until_begun(1)
    worker.order("drain")  # as on a reload
    gate.open()
    gate.until_begun(2)
    worker.order("stopping")
    assert worker.reply(id)["result"] == [False, True, False]
    assert worker.wait() == 0
