"""Pools and commands of a real master, on both databases, with children that no Python wrote."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from forge.errors import JobIsDead
from forge.job import Status

from .conftest import Project, alive, eventually
from .test_programs import BROKEN, pool, sh

pytestmark = pytest.mark.impl_free

# A child as in the original's tests: one line back for each line that is read.
SHELL = """
while IFS= read -r line; do
    id=$(printf '%s' "$line" | sed 's/.*"id":"\\([^"]*\\)".*/\\1/')
    printf '{"id":"%s","status":"ok","result":"sh"}\\n' "$id"
done
"""
NODE = """
const lines = require("readline").createInterface({ input: process.stdin });
lines.on("line", (line) => {
  const { id, payload } = JSON.parse(line);
  console.log(JSON.stringify({ id, status: "ok", result: { node: payload } }));
});
"""


def serve(project: Project, *tables: str, workers: int = 4) -> Any:
    text = f'modules = ["tasks"]\n\n[queues.default]\nmax_workers = {workers}\n\n' + "\n".join(tables)
    (project.folder / "forge.toml").write_text(text)
    return project.start()


def perl(project: Project, what: str, kind: str = "perl", **options: Any) -> Any:
    return project.app.enqueue(kind, {"do": what}, keep_result=True, **options)


def given(project: Project, what: str) -> list[int]:
    """The pids of children that were given such a job."""
    return [int(words[-1]) for words in project.events("GIVEN") if " ".join(words[1:-1]) == what]


BREAKING = {
    "partial": "exited with 4 in the middle of its answer",
    "exit": "exited with 3, without an answer",
    "signal": "killed by SIGSEGV",
    "garbage": "its answer is not JSON",
    "empty": "its answer is not JSON",
    "array": "its answer is not a JSON object",
    "status": "no status that is known",
    "wrong id": "does not match (desync)",
    "endless": "more than 6,356,992 bytes",
    "stdout": "it closed its stdout and went on",
    "late": "timeout after 1 s",
    "no line end": "timeout after 1 s",
    "deaf": "timeout after 1 s",
    "forks": "timeout after 1 s",
    "error": "boom",
    "dead": "never",
}
KEEPING = ("ok", "missing id", "crlf", "in pieces", "two lines", "exit 0", "stderr", "long stderr")


def test_children_that_break_every_rule_at_once_hurt_no_job_but_their_own(project: Project) -> None:
    pod = serve(project, pool("perl", "perl", BROKEN, size=3), pool("other", *sh(SHELL)), workers=5)
    times = {what: 1 if said.startswith("timeout") else 60 for what, said in BREAKING.items()}
    bad = {what: perl(project, what, timeout=times[what], max_attempts=1) for what in BREAKING}
    good = [perl(project, what) for what in KEEPING for _ in range(2)]
    others = [project.app.enqueue("other", {}, keep_result=True) for _ in range(10)]
    python: list[Any] = [project.enqueue("add", n, 1) for n in range(10)]
    assert [job.result(timeout=60) for job in others] == ["sh"] * 10
    assert [job.result(timeout=60) for job in python] == [n + 1 for n in range(10)]
    assert all(isinstance(job.result(timeout=60), int) for job in good)
    assert [job.job().attempts for job in good] == [1] * len(good)
    for what, job in bad.items():
        with pytest.raises(JobIsDead) as caught:
            job.result(timeout=60)
        assert BREAKING[what] in str(caught.value), what
    pids = [pid for what in BREAKING for pid in given(project, what)]
    eventually(lambda: not [pid for pid in pids if alive(pid) and pid not in pod.children()])
    (grandchild,) = (int(words[1]) for words in project.events("GRANDCHILD"))
    eventually(lambda: not alive(grandchild))
    assert perl(project, "ok").result(timeout=30)
    assert len([pid for pid in pod.children() if "perl" in name_of(pid)]) <= 3
    assert pod.stop() == 0


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def test_a_failed_job_is_tried_again_by_another_child(project: Project) -> None:
    serve(project, pool("flaky", *sh(f"if [ -e again ]; then {SHELL} else read -r l; touch again; exit 9; fi")))
    job = project.app.enqueue("flaky", {}, keep_result=True)
    assert job.result(timeout=30) == "sh"
    found = job.job()
    assert (found.attempts, found.crashes) == (2, 0)
    assert "exited with 9, without an answer" in str(found.last_error)


def test_a_throttled_job_gets_its_attempt_back_and_cools_its_queue_down(project: Project) -> None:
    serve(project, pool("perl", "perl", BROKEN))
    job = perl(project, "throttled")
    eventually(lambda: project.app.storage.queues()["default"].throttled_until)
    found = job.job()
    assert (found.status, found.attempts) == (Status.PENDING, 0)


@pytest.mark.skipif(shutil.which("node") is None, reason="this machine has no node; sh and perl cover the protocol")
def test_a_pool_of_node(project: Project) -> None:
    (project.folder / "render.js").write_text(NODE)
    pod = serve(project, pool("render", "node", "render.js", size=2))
    assert pod.says("pool render: 2 children of node render.js")
    jobs = [project.app.enqueue("render", {"n": n, "text": "ü\n"}, keep_result=True) for n in range(50)]
    assert [job.result(timeout=60) for job in jobs] == [{"node": {"n": n, "text": "ü\n"}} for n in range(50)]
    assert pod.stop() == 0


def test_cancelling_a_pool_job_kills_its_child_and_the_job_is_cancelled(project: Project) -> None:
    serve(project, pool("perl", "perl", BROKEN))
    job = perl(project, "deaf")
    eventually(lambda: given(project, "deaf"))
    assert job.cancel() == "requested"
    eventually(lambda: job.status == Status.CANCELLED)
    eventually(lambda: not alive(given(project, "deaf")[0]))
    assert perl(project, "ok").result(timeout=30)


def test_a_stop_lets_pool_jobs_finish_and_children_leave(project: Project) -> None:
    pod = serve(project, pool("perl", "perl", BROKEN))
    job, waiting = perl(project, "slow"), perl(project, "ok")
    eventually(lambda: given(project, "slow"))
    assert pod.stop() == 0
    assert job.status == Status.DONE
    assert waiting.status in (Status.PENDING, Status.DONE)
    assert project.events("LEFT") == [["LEFT", str(given(project, "slow")[0])]]


def test_a_second_interrupt_gives_a_pool_job_back_with_its_attempt(project: Project) -> None:
    pod = serve(project, pool("perl", "perl", BROKEN))
    job = perl(project, "deaf")
    eventually(lambda: given(project, "deaf"))
    pod.process.send_signal(signal.SIGINT)
    eventually(lambda: pod.says("stopping: 1 jobs in hand"))
    assert pod.stop(signal.SIGINT) == 0
    found = job.job()
    assert (found.status, found.attempts, found.last_error) == (Status.PENDING, 0, "the master was stopped")
    eventually(lambda: not alive(given(project, "deaf")[0]))


def test_no_program_and_nothing_it_started_outlives_a_killed_master(project: Project) -> None:
    pod = serve(project, pool("perl", "perl", BROKEN), "[commands]\nallow_any = true\n")
    perl(project, "forks")
    script = 'sleep 600 & echo "GRANDCHILD $!" >> $LEDGER; wait'
    project.app.enqueue("cmd_exec", {"argv": ["sh", "-c", script]})
    eventually(lambda: len(project.events("GRANDCHILD")) == 2)
    grandchildren = {int(words[1]) for words in project.events("GRANDCHILD")}
    below = pod.children() | grandchildren
    assert all(map(alive, grandchildren))
    os.kill(pod.process.pid, signal.SIGKILL)
    eventually(lambda: not any(map(alive, below)))


def test_hup_brings_the_children_of_the_new_configuration(project: Project) -> None:
    pod = serve(project, pool("perl", "perl", BROKEN), pool("other", *sh(SHELL)))
    before = perl(project, "ok").result(timeout=30)
    running = perl(project, "slow")
    eventually(lambda: given(project, "slow"))
    text = (project.folder / "forge.toml").read_text().replace('kind = "other"', 'kind = "else"')
    (project.folder / "forge.toml").write_text(text)
    pod.process.send_signal(signal.SIGHUP)
    assert running.result(timeout=30) == before
    eventually(lambda: pod.says("replaced"))
    assert project.app.enqueue("else", {}, keep_result=True).result(timeout=30) == "sh"
    eventually(lambda: not alive(before))
    assert perl(project, "ok").result(timeout=30) != before
    assert pod.stop() == 0


def test_a_pod_without_any_python_task_runs_its_pools(project: Project) -> None:
    text = "[queues.default]\nmax_workers = 1\n" + pool("other", *sh(SHELL))
    (project.folder / "forge.toml").write_text(text)
    project.start()
    assert project.app.enqueue("other", {}, keep_result=True).result(timeout=30) == "sh"


def test_jobs_in_programs_and_in_workers_together_are_no_more_than_the_queue_allows(project: Project) -> None:
    serve(project, "[commands]\nallow_any = true\n", workers=2)
    script = f'echo "START c $$" >> {project.ledger}; sleep 0.1; echo "END c $$" >> {project.ledger}'
    jobs: list[Any] = []
    for n in range(8):
        jobs.append(project.app.enqueue("cmd_exec", {"argv": ["sh", "-c", script]}))
        jobs.append(project.enqueue("slow", n, 0.1))
    eventually(lambda: all(job.status == Status.DONE for job in jobs))
    running, most = 0, 0
    for line in project.ledger.read_text().splitlines():
        running += {"START": 1, "END": -1}.get(line.split()[0], 0)
        most = max(most, running)
    assert most == 2


def test_commands_run_end_and_answer(project: Project) -> None:
    pod = serve(project, '[commands.count]\nargv = ["printf", "%s", "{word}"]\n[commands.fail]\nargv = ["false"]\n')
    assert pod.says("commands: count, fail")
    enqueue = project.app.enqueue
    done = enqueue("cmd_exec", {"command": "count", "args": {"word": "a b"}}, keep_result=True)
    assert done.result(timeout=30) == {"stdout": "a b"}
    with pytest.raises(JobIsDead, match="exit 1"):
        enqueue("cmd_exec", {"command": "fail"}, keep_result=True, max_attempts=1).result(timeout=30)
    unknown = enqueue("cmd_exec", {"command": "cuont"}, keep_result=True)
    with pytest.raises(JobIsDead, match='no command "cuont"; did you mean count'):
        unknown.result(timeout=30)
    assert unknown.job().attempts == 1
    free = enqueue("cmd_exec", {"argv": ["true"]}, keep_result=True)
    with pytest.raises(JobIsDead, match="allow_any"):
        free.result(timeout=30)


def test_programs_see_the_masters_environment_but_not_a_database_that_came_as_a_flag(project: Project) -> None:
    script = 'read -r l; echo "ENV [$FORGE_DATABASE_URL] [$MARK]" >> $LEDGER; echo \'{"status":"ok"}\'; read -r l'
    project.env = {**project.env, "MARK": "here"}
    del project.env["FORGE_DATABASE_URL"]
    (project.folder / "forge.toml").write_text("[queues.default]\n" + pool("env", *sh(script)))
    project.start("--database", project.url)
    job = project.app.enqueue("env", {})
    eventually(lambda: job.status == Status.DONE)
    assert project.events("ENV") == [["ENV", "[]", "[here]"]]
