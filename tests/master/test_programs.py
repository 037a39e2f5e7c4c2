"""Pools with a child that breaks every rule: what becomes of the job, of the child, and of the next job."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge.job import Dead, Done, Failed, Released, Throttled

from .conftest import alive
from .rig import Rig

pytestmark = pytest.mark.impl_free

BROKEN = Path(__file__).parent / "broken.pl"


def pool(name: str, *argv: object, **settings: object) -> str:
    """A `[pools.NAME]` table; its kind is its name."""
    words = {"kind": name, "argv": [str(word) for word in argv], **settings}
    return f"[pools.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in words.items())


def sh(script: str) -> tuple[str, str, str]:
    return "sh", "-c", script


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "ledger"
    file.touch()
    monkeypatch.setenv("LEDGER", str(file))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return file


@pytest.fixture
def rig(tmp_path: Path, ledger: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, pool("perl", "perl", BROKEN) + pool("other", "perl", BROKEN))
    yield made
    made.close()


def do(rig: Rig, what: str, **fields: Any) -> Any:
    return rig.run("perl", {"do": what}, **fields)


def pid_of(rig: Rig, kind: str = "perl") -> int:
    """The pid of the child that answers a good job."""
    ending = rig.run(kind, {"do": "ok"})
    assert isinstance(ending.outcome, Done), ending
    assert ending.result is not None
    return int(ending.result)


def words_of(ledger: Path, word: str) -> list[list[str]]:
    return [line.split() for line in ledger.read_text().splitlines() if line.startswith(f"{word} ")]


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("partial", "exited with 4 in the middle of its answer, without an answer"),
        ("exit", "exited with 3, without an answer"),
        ("signal", "killed by SIGSEGV, without an answer"),
        ("garbage", "its answer is not JSON: 'Segmentation fault (core dumped)'"),
        ("bytes", "its answer is not JSON"),
        ("deep", "its answer is not JSON: '[[[["),
        ("empty", "its answer is not JSON: ''"),
        ("array", "its answer is not a JSON object: '[1,2]'"),
        ("status", "its answer has no status that is known"),
        ("no status", "its answer has no status that is known"),
        ("bad pause", "its answer has a retry_after_secs that is no number of seconds: soon"),
        ("wrong id", "the id of its answer does not match (desync): got stale, want "),
        ("number id", "the id of its answer does not match (desync): got 7, want "),
        ("endless", "its answer has more than 6,356,992 bytes"),
        ("stdout", "it closed its stdout and went on"),
        ("late", "timeout after 1 s"),
        ("no line end", "timeout after 1 s"),
        ("deaf", "timeout after 1 s"),
    ],
)
def test_a_child_that_breaks_a_rule_fails_its_job_and_is_replaced(rig: Rig, what: str, said: str) -> None:
    before, other = pid_of(rig), pid_of(rig, "other")
    beside = rig.enqueue("other", {"do": "slow"})
    ending = do(rig, what, timeout=1 if said.startswith("timeout") else 60)
    assert isinstance(ending.outcome, Failed)
    assert said in ending.outcome.message
    assert 1.0 <= -ending.delay <= 3.0  # by its queue, or decorrelated from 1 s
    rig.until(lambda: not alive(before))
    assert pid_of(rig) != before
    assert isinstance(rig.ending(beside).outcome, Done)
    assert pid_of(rig, "other") == other
    assert rig.says("another starts at once")


@pytest.mark.parametrize("what", ["ok", "missing id", "crlf", "in pieces"])
def test_a_child_that_keeps_to_the_rules_is_kept(rig: Rig, what: str) -> None:
    before = pid_of(rig)
    for _ in range(3):
        ending = do(rig, what)
        assert isinstance(ending.outcome, Done)
        assert ending.result == str(before).encode()
    assert rig.log == []


@pytest.mark.parametrize(
    ("what", "said"),
    [("error", "boom"), ("plain error", "worker reported error"), ("odd error", '{"code":7}')],
)
def test_a_job_that_a_child_reports_as_failed_leaves_the_child_alone(rig: Rig, what: str, said: str) -> None:
    before = pid_of(rig)
    outcome = do(rig, what).outcome
    assert isinstance(outcome, Failed)
    assert outcome.message == said
    assert pid_of(rig) == before


def test_dead_and_throttled_are_what_they_say(rig: Rig) -> None:
    dead, throttled, plain = (do(rig, what).outcome for what in ("dead", "throttled", "throttled, plain"))
    assert isinstance(dead, Dead)
    assert dead.message == "never"
    assert isinstance(throttled, Throttled)
    assert isinstance(plain, Throttled)
    assert (throttled.retry_after, plain.retry_after) == (12.0, 60.0)


@pytest.mark.parametrize("what", ["two lines", "late line", "stdin", "exit 0"])
def test_a_job_keeps_its_answer_though_its_child_is_of_no_more_use(rig: Rig, what: str) -> None:
    before = pid_of(rig)
    ending = do(rig, what)
    assert isinstance(ending.outcome, Done)
    assert ending.result == str(before).encode()
    if what == "late line":
        rig.until(lambda: rig.says("it wrote without having a job (desync)"))
    assert pid_of(rig) != before
    rig.until(lambda: not alive(before))


def test_what_a_child_started_dies_with_it(rig: Rig, ledger: Path) -> None:
    job = rig.enqueue("perl", {"do": "forks"}, timeout=2)
    rig.until(lambda: words_of(ledger, "GRANDCHILD"))
    grandchild = int(words_of(ledger, "GRANDCHILD")[0][1])
    assert alive(grandchild)
    rig.ending(job)
    rig.until(lambda: not alive(grandchild))


def test_what_a_child_that_ended_by_itself_had_started_is_killed(tmp_path: Path, ledger: Path) -> None:
    script = 'read -r line; sleep 600 & echo "GRANDCHILD $!" >> $LEDGER; exit 1'
    rig = Rig(tmp_path, pool("leaves", *sh(script)))
    assert "exited with 1" in rig.run("leaves").outcome.message  # type: ignore[attr-defined]
    grandchild = int(words_of(ledger, "GRANDCHILD")[0][1])
    rig.until(lambda: not alive(grandchild))
    rig.close()


@pytest.mark.parametrize("what", ["stderr", "long stderr"])
def test_a_flood_of_stderr_is_cut_and_delays_nobody(rig: Rig, what: str) -> None:
    flood, beside = rig.enqueue("perl", {"do": what}), rig.enqueue("other", {"do": "ok"})
    assert isinstance(rig.ending(beside).outcome, Done)
    assert isinstance(rig.ending(flood).outcome, Done)
    lines = [line for line in rig.log if line.startswith("perl/0  ")]
    assert len(lines) < 5_000
    assert max(map(len, lines)) < 2_100
    if what == "stderr":
        assert lines[0] == "perl/0  a line of the flood number 1"
        rig.until(lambda: rig.says("more lines"))


def test_the_child_is_told_what_it_may_want_to_know(rig: Rig) -> None:
    claim = rig.enqueue("perl", {"do": "echo", "text": "…\n\u2028"}, queue="images", attempt=2, timeout=30)
    request = json.loads(rig.ending(claim).result or b"")
    assert request.pop("deadline_ms") > 1_700_000_000_000
    assert request == {
        "id": str(claim.id),
        "kind": "perl",
        "queue": "images",
        "attempt": 2,
        "max_attempts": 5,
        "payload": {"do": "echo", "text": "…\n\u2028"},
    }


def test_a_payload_stored_over_several_lines_goes_out_as_one(rig: Rig) -> None:
    claim = rig.enqueue("perl")
    claim = claim._replace(payload=b'{\n  "do":"echo",\n  "list": [1,\n 2]\n}')
    rig.programs.take([claim])
    assert json.loads(rig.ending(claim).result or b"")["payload"] == {"do": "echo", "list": [1, 2]}


def test_a_payload_larger_than_a_pipe_arrives(rig: Rig) -> None:
    text = "x" * 900_000
    ending = rig.run("perl", {"do": "echo", "text": text})
    assert json.loads(ending.result or b"")["payload"]["text"] == text


def test_a_result_that_cannot_be_stored_is_the_end_of_the_job_and_not_of_the_child(rig: Rig) -> None:
    before = pid_of(rig)
    ending = rig.run("perl", {"do": "echo", "text": "x" * 1_048_500})
    assert isinstance(ending.outcome, Dead)
    assert ending.outcome.message.startswith("its work was done, but its result cannot be stored: result is ")
    assert pid_of(rig) == before


def test_a_result_that_nobody_keeps_is_not_stored(rig: Rig) -> None:
    assert do(rig, "ok", keep_result=False).result is None


def test_it_runs_in_its_folder_with_its_variables_and_those_of_the_master(tmp_path: Path, ledger: Path) -> None:
    (tmp_path / "inside").mkdir()
    script = f'cd .; export PWD; exec perl "{BROKEN}"'
    rig = Rig(tmp_path, pool("perl", *sh(script), cwd="inside") + '[pools.perl.env]\nWORD = "{no} $template"\n')
    ending = do(rig, "environment")
    assert json.loads(ending.result) == f"{{no}} $template/{tmp_path}/inside"
    rig.close()


def test_any_free_child_takes_the_next_job(tmp_path: Path, ledger: Path) -> None:
    rig = Rig(tmp_path, pool("perl", "perl", BROKEN, size=2))
    stuck = rig.enqueue("perl", {"do": "hang"}, timeout=60)
    pids = {pid_of(rig) for _ in range(4)}
    assert len(pids) == 1
    waiting = [rig.enqueue("perl", {"do": "slow"}) for _ in range(3)]
    assert [isinstance(rig.ending(claim).outcome, Done) for claim in waiting] == [True] * 3
    assert rig.endings.index(rig.ending(waiting[0])) < rig.endings.index(rig.ending(waiting[2]))
    assert all(ending.claim is not stuck for ending in rig.endings)
    rig.close()


# -- programs that are no use at all


def test_a_program_that_always_exits_fails_its_jobs_and_is_not_started_in_a_hot_loop(
    tmp_path: Path, ledger: Path
) -> None:
    rig = Rig(tmp_path, pool("exits", *sh('echo "START $$" >> $LEDGER; exit 1')))
    for _ in range(2):
        outcome = rig.run("exits").outcome
        assert isinstance(outcome, Failed)
        assert "exited with 1, without an answer" in outcome.message
    rig.until(lambda: rig.says("another starts in 0.8 s"))
    assert len(words_of(ledger, "START")) <= 8
    rig.close()


def test_an_answer_to_a_job_that_was_not_read_is_no_answer(tmp_path: Path, ledger: Path) -> None:
    eager = sh('while [ ! -e go ]; do sleep 0.01; done; echo \'{"status":"ok"}\'; sleep 600')
    rig = Rig(tmp_path, pool("eager", *eager))
    claim = rig.enqueue("eager")
    rig.until(lambda: rig.programs.places.running["default"] == 1)
    (tmp_path / "go").touch()
    outcome = rig.ending(claim).outcome
    assert isinstance(outcome, Failed)
    assert "it answered before it read the job (desync)" in outcome.message
    rig.until(lambda: rig.says("it wrote without having a job (desync)"))  # its successor, which has none
    rig.close()


def test_a_program_that_is_missing_sends_jobs_back_and_is_named_once(tmp_path: Path, ledger: Path) -> None:
    rig = Rig(tmp_path, pool("gone", "./not-there") + pool("perl", "perl", BROKEN))
    for _ in range(3):
        ending = rig.run("gone")
        assert isinstance(ending.outcome, Released)
        assert ending.outcome.message == "forge: cannot run ./not-there: No such file or directory"
        assert 5.0 <= ending.delay <= 60.0
    assert sum("jobs of kind gone go back until it can be" in line for line in rig.log) == 1
    assert pid_of(rig)
    (tmp_path / "not-there").write_text(f'#!/bin/sh\nexec perl "{BROKEN}"\n')  # it comes, and jobs run
    (tmp_path / "not-there").chmod(0o755)
    rig.until(lambda: isinstance(rig.run("gone", {"do": "ok"}).outcome, Done))
    rig.close()


def test_a_child_that_leaves_between_jobs_costs_no_job_an_attempt(tmp_path: Path, ledger: Path) -> None:
    """It answers and exits; the next job may be on its way to it already."""
    rig = Rig(tmp_path, pool("perl", "perl", BROKEN, size=2))
    claims = [rig.enqueue("perl", {"do": "exit 0"}) for _ in range(40)]
    assert all(isinstance(rig.ending(claim).outcome, Done) for claim in claims)
    rig.close()


# -- stopping


def test_a_cancelled_job_takes_its_child_along_at_once(rig: Rig) -> None:
    before = pid_of(rig)
    running, waiting = rig.enqueue("perl", {"do": "deaf"}, token=7), rig.enqueue("perl", {"do": "ok"}, token=8)
    rig.until(lambda: rig.programs.places.running["default"] == 1)
    rig.programs.cancel({(running.id, 6), (waiting.id, 8)})  # the first is of another claim
    assert type(rig.ending(waiting).outcome).__name__ == "Cancelled"
    assert len(rig.endings) == 2
    rig.programs.cancel({(running.id, 7)})
    assert type(rig.ending(running).outcome).__name__ == "Cancelled"
    rig.until(lambda: not alive(before))
    assert pid_of(rig) != before


def test_at_the_end_running_jobs_finish_waiting_ones_go_back_and_children_leave(rig: Rig, ledger: Path) -> None:
    pid = pid_of(rig)
    running, waiting = rig.enqueue("perl", {"do": "slow"}), rig.enqueue("perl", {"do": "ok"})
    rig.until(lambda: rig.programs.places.running["default"] == 1)
    rig.programs.drain()
    assert isinstance(rig.ending(waiting).outcome, Released)
    assert isinstance(rig.ending(running).outcome, Done)
    late = rig.enqueue("perl", {"do": "ok"})
    assert isinstance(rig.ending(late).outcome, Released)
    rig.until(lambda: rig.programs.gone)
    assert ["LEFT", str(pid)] in words_of(ledger, "LEFT")  # of its own will, at the end of its input
    assert rig.log == []


def test_a_child_that_does_not_leave_is_killed(tmp_path: Path, ledger: Path) -> None:
    rig = Rig(tmp_path, pool("deaf", *sh('trap "" TERM; echo "START $$" >> $LEDGER; sleep 600; sleep 600')))
    rig.until(lambda: words_of(ledger, "START"))
    rig.programs.drain()
    rig.until(lambda: rig.programs.gone)
    assert not alive(int(words_of(ledger, "START")[0][1]))
    rig.close()


def test_what_still_runs_when_time_is_up_is_given_back_and_killed(rig: Rig) -> None:
    pid = pid_of(rig)
    claim = rig.enqueue("perl", {"do": "hang"})
    rig.until(lambda: rig.programs.places.running["default"] == 1)
    rig.programs.drain()
    rig.programs.close()
    (ending,) = (ending for ending in rig.endings if ending.claim is claim)
    assert isinstance(ending.outcome, Released)
    assert ending.outcome.message == "the master was stopped"
    rig.until(lambda: rig.programs.gone and not alive(pid))


def test_a_pod_that_was_taken_for_dead_forgets_its_jobs_and_stops_them(rig: Rig) -> None:
    pid = pid_of(rig)
    rig.enqueue("perl", {"do": "hang"})
    rig.enqueue("perl", {"do": "ok"})
    rig.until(lambda: rig.programs.places.running["default"] == 1)
    rig.programs.lost()
    assert rig.programs.in_hand == 0
    rig.until(lambda: not alive(pid))
    assert pid_of(rig) != pid
    assert len(rig.endings) == 2  # of the good jobs before and after


def test_a_new_configuration_replaces_children_as_their_jobs_end(rig: Rig, ledger: Path) -> None:
    before, other = pid_of(rig), pid_of(rig, "other")
    running = rig.enqueue("perl", {"do": "slow"})
    waiting = [rig.enqueue("perl", {"do": "ok"}), rig.enqueue("other", {"do": "slow"})]
    rig.until(lambda: rig.programs.places.running["default"] == 2)
    lost = rig.enqueue("other", {"do": "ok"})
    rig.configure(pool("perl", "perl", BROKEN, size=3))
    rig.zygotes[0].tell("retire")
    assert rig.ending(running).result == str(before).encode()
    assert all(isinstance(rig.ending(claim).outcome, Done) for claim in waiting)
    assert isinstance(rig.ending(lost).outcome, Released)  # its kind is not served any more
    assert len({rig.ending(rig.enqueue("perl", {"do": "ok"})).result for _ in range(2)} - {str(before).encode()}) >= 1
    rig.until(lambda: not alive(before) and not alive(other))
    rig.until(lambda: rig.zygotes[0].process.poll() is not None)  # the old zygote leaves after its last child
    assert not rig.says("killed")


def test_when_the_zygote_is_killed_its_programs_go_and_their_jobs_go_back(rig: Rig) -> None:
    pid = pid_of(rig)
    claim = rig.enqueue("perl", {"do": "hang"})
    rig.until(lambda: any(child.unread() == 0 for child in rig.programs._running()))  # it has read the job
    os.kill(rig.zygotes[0].process.pid, signal.SIGKILL)
    outcome = rig.ending(claim).outcome
    assert isinstance(outcome, Released) and not outcome.crashed
    rig.until(lambda: not alive(pid))


# -- places


def test_a_queue_without_a_place_lets_its_jobs_wait_and_those_of_others_pass(tmp_path: Path, ledger: Path) -> None:
    rig = Rig(tmp_path, pool("perl", "perl", BROKEN, size=3))
    rig.places = 1
    stuck = [rig.enqueue("perl", {"do": "hang"}, queue="a") for _ in range(2)]
    passing = rig.enqueue("perl", {"do": "ok"}, queue="b")
    assert isinstance(rig.ending(passing).outcome, Done)
    assert rig.programs.places.running == {"a": 1, "b": 0}
    assert rig.programs.places.taken == {"a": 2, "b": 0}
    assert rig.programs.places.outside("a") == 2  # the next place of the queue is not a worker's
    rig.places = 2
    rig.until(lambda: rig.programs.places.running["a"] == 2)
    rig.programs.cancel({(claim.id, claim.token) for claim in stuck})
    rig.until(lambda: rig.programs.in_hand == 0)
    rig.close()
