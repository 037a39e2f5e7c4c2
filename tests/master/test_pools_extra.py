"""Children of pools that write more than they should: the next job, which they have not read, does not pay for it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge.job import Done, Failed, Status

from .conftest import Project, eventually
from .rig import Rig
from .test_pools import serve
from .test_programs import ledger, pool, sh, words_of  # noqa: F401 (a fixture)

pytestmark = pytest.mark.impl_free

ANSWERS = """
while IFS= read -r line; do
    id=$(printf '%s' "$line" | sed 's/.*"id":"\\([^"]*\\)".*/\\1/')
    printf '{"id":"%s","status":"ok","result":"sh"}\\n' "$id"
done
"""
# The first child answers one job, waits until it is told to, writes more, and reads nothing any more.
EXTRA = """
if [ ! -e first ]; then
    touch first; read -r line
    id=$(printf '%%s' "$line" | sed 's/.*"id":"\\([^"]*\\)".*/\\1/')
    printf '{"id":"%%s","status":"ok"}\\n' "$id"
    while [ ! -e go ]; do sleep 0.01; done
    %s
    sleep 600
fi
"""
MORE = {
    "the same answer again": """printf '{"id":"%s","status":"ok"}\\n' "$id" """,
    "an answer without an id": """printf '{"status":"ok"}\\n'""",
    "an error": """printf '{"status":"error","message":"late"}\\n'""",
    "no JSON": "echo done",
    "no line": "printf x",
    "an empty line": "echo",
    "a flood": "head -c 3000000 /dev/zero",
}


@pytest.fixture
def start(tmp_path: Path, ledger: Path) -> Iterator[Callable[[str], Rig]]:  # noqa: F811
    made: list[Rig] = []

    def starting(script: str) -> Rig:
        made.append(Rig(tmp_path, pool("p", *sh(script))))
        return made[-1]

    yield starting
    for rig in made:
        rig.close()


@pytest.mark.parametrize("more", MORE.values(), ids=MORE)
def test_a_job_that_a_child_had_not_read_when_it_wrote_more_is_given_again(
    start: Callable[[str], Rig], tmp_path: Path, more: str
) -> None:
    rig = start(EXTRA % more + ANSWERS)
    assert isinstance(rig.run("p").outcome, Done)
    claim = rig.enqueue("p")
    rig.until(lambda: rig.programs.places.running["default"] == 1)  # written to the first child, which does not look
    (tmp_path / "go").touch()
    ending = rig.ending(claim)
    assert isinstance(ending.outcome, Done) and ending.result == b'"sh"'
    assert rig.says("it answered before it read the job (desync)")


def test_a_child_that_had_read_the_job_fails_it(start: Callable[[str], Rig], tmp_path: Path) -> None:
    read_too = """read -r line; printf '{"id":"%s","status":"ok"}\\n' "$id" """
    rig = start(EXTRA % read_too + ANSWERS)
    rig.run("p")
    claim = rig.enqueue("p")
    rig.until(lambda: rig.programs.places.running["default"] == 1)
    (tmp_path / "go").touch()
    outcome = rig.ending(claim).outcome
    assert isinstance(outcome, Failed) and "does not match (desync)" in outcome.message


# Answers a job, waits until there is another, writes a line too many, and then goes on as if nothing had been.
TOO_MANY = """
import json, os, select, time
while line := os.read(0, 65536):
    os.write(1, json.dumps({"id": json.loads(line)["id"], "status": "ok"}).encode() + b"\\n")
    select.select([0], [], [])
    os.write(1, b'{"status":"ok"}\\n')
    time.sleep(600)
"""


def test_a_program_that_always_writes_a_line_too_many_runs_every_job_once(tmp_path: Path, ledger: Path) -> None:  # noqa: F811
    rig = Rig(tmp_path, pool("p", sys.executable, "-c", TOO_MANY, size=3))
    claims = [rig.enqueue("p") for _ in range(12)]
    assert all(isinstance(rig.ending(claim).outcome, Done) for claim in claims)
    assert rig.says("it answered before it read the job (desync)")
    rig.close()


def test_a_program_that_always_speaks_first_fails_its_jobs_in_the_end(
    start: Callable[[str], Rig], tmp_path: Path
) -> None:
    banner = """echo "START $$" >> $LEDGER; while [ ! -e go ]; do sleep 0.01; done; echo ready; sleep 600"""
    rig = start(banner)
    claim = rig.enqueue("p")
    rig.until(lambda: rig.programs.places.running["default"] == 1)
    (tmp_path / "go").touch()
    outcome = rig.ending(claim).outcome
    assert isinstance(outcome, Failed)
    assert "it answered before it read the job (desync): 'ready" in outcome.message
    assert len(words_of(tmp_path / "ledger", "START")) <= 6


def test_a_line_too_many_costs_the_next_job_nothing_in_a_real_pod(project: Project) -> None:
    serve(project, pool("extra", *sh(EXTRA % MORE["the same answer again"] + ANSWERS)))
    first = project.app.enqueue("extra", {}, keep_result=True)
    eventually(lambda: first.status == Status.DONE)
    second: Any = project.app.enqueue("extra", {}, keep_result=True)
    eventually(lambda: second.status == Status.IN_PROGRESS)
    (project.folder / "go").touch()
    assert second.result(timeout=30) == "sh"
    found = second.job()
    assert (found.attempts, found.crashes, found.last_error) == (1, 0, None)
