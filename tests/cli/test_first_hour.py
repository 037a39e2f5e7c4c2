"""The first hour of a newcomer, typed as the tutorial has it: a real shell, a real master, nothing prepared."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.master.conftest import Pod, eventually

pytestmark = pytest.mark.impl_free

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


class Newcomer:
    """Types commands in a project's folder, and starts masters there."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("FORGE_", "DATABASE_URL", "PYTEST"))}
        self.env = {**clean, "PATH": f"{BIN}{os.pathsep}{clean['PATH']}", "PYTHONPATH": str(ROOT)}
        self.pods: list[Pod] = []

    def types(self, line: str, code: int = 0) -> str:
        """What the shell prints for it, errors too."""
        ran = subprocess.run(
            ["bash", "-c", line],
            cwd=self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60,
            check=False,
        )
        assert ran.returncode == code, ran.stdout
        return ran.stdout.rstrip("\n")

    def starts_a_master(self) -> Pod:
        pod = Pod(self.folder, self.env)
        self.pods.append(pod)
        return pod.ready()


@pytest.fixture
def newcomer(folder: Path) -> Iterator[Newcomer]:
    made = Newcomer(folder)
    yield made
    for pod in made.pods:
        pod.process.kill()
        pod.process.wait()
        pod._reader.join(10)
        assert pod.process.stderr is not None
        pod.process.stderr.close()


def said(pod: Pod) -> list[str]:
    """The master's lines without the time of day."""
    return [line.partition(" ")[2] for line in pod.lines]


def test_the_first_hour(newcomer: Newcomer, empty_pg_url: str) -> None:
    assert newcomer.types("forge init hello && cd hello").splitlines() == [
        "created forge.toml, tasks.py, tests/test_tasks.py",
        "next:  forge-master -c forge.toml",
    ]
    newcomer.folder /= "hello"

    pod = newcomer.starts_a_master()
    eventually(lambda: pod.says("this pod leads"))
    for line, pattern in zip(
        said(pod),
        [
            rf"master  forge \S+ \((native|pure Python)\)  pid {pod.process.pid}  config forge\.toml",
            r"master  storage sqlite:///forge\.db \(created, schema \d+\)",
            r"master  2 tasks from tasks: tasks\.add, tasks\.flaky",
            r"master  4 workers ready in \d+\.\d\d s",
            r"master  ctrl-c drains \(25 s\); twice stops now",
            r"leader  this pod leads \(term 1\)",
        ],
        strict=True,
    ):
        assert re.fullmatch(pattern, line), line

    assert newcomer.types("forge enqueue tasks.add 2 3 --wait") == "5"
    one_line = "from tasks import add; print(add.enqueue(20, 22).result(timeout=5))"
    assert newcomer.types(f"python -c '{one_line}'") == "42"

    flaky = newcomer.types("forge enqueue tasks.flaky")
    eventually(lambda: "failed" in newcomer.types(f"forge show {flaky}"))
    shown, following = newcomer.types(f"forge show {flaky}").splitlines()
    assert re.fullmatch(
        r"tasks\.flaky  \w+, attempt \d of 5, .*   ValueError: no luck  \(tasks\.py:13 in flaky\)", shown
    ), shown
    assert following.startswith(f"next:  forge retry {flaky} | forge cancel {flaky}")

    workers = [int(pid) for pid in newcomer.types("pgrep -f '^forge: worker default/0'").split()]
    (worker,) = pod.children() & set(workers)
    newcomer.types(f"kill -9 {worker}")
    eventually(lambda: pod.says("killed by SIGKILL"))
    crash = next(line for line in said(pod) if "killed by SIGKILL" in line)
    pattern = rf"master  worker default/0 \({worker}\) killed by SIGKILL; \d jobs? released; worker started in \d+ ms"
    assert re.fullmatch(pattern, crash), crash
    assert newcomer.types("forge enqueue tasks.add 1 1 --wait") == "2"

    table = newcomer.types("forge top --interval 0.1")
    assert re.search(r"^default +4 ", table, re.MULTILINE), table
    assert "2 passed" in newcomer.types("pytest -q -p no:cacheprovider")
    assert newcomer.types("forge enqueue tasks.ad 1 2", code=2) == (
        "error: no task tasks.ad; did you mean tasks.add?   (forge tasks lists all)"
    )
    assert pod.stop(signal.SIGINT) == 0
    assert said(pod)[-1].startswith("master  stopped")

    newcomer.env["DATABASE_URL"] = empty_pg_url
    checked = newcomer.types("forge db migrate && forge doctor")
    assert "error" not in checked
    second = newcomer.starts_a_master()
    assert newcomer.types("forge enqueue tasks.add 2 3 --wait") == "5"
    assert any("storage postgresql://" in line for line in said(second))
    assert second.stop() == 0


@pytest.mark.parametrize(
    ("line", "code", "answer"),
    [
        ("forge-master", 3, "no queues declared; add [queues.default] to forge.toml, or set FORGE_QUEUES"),
        ("forge-master -c gone.toml", 3, "gone.toml"),
        ("forge show 0198", 6, "there is no database sqlite:///forge.db yet; run: forge db migrate"),
    ],
)
def test_what_goes_wrong_ends_in_what_to_do(newcomer: Newcomer, line: str, code: int, answer: str) -> None:
    errors = [said for said in newcomer.types(line, code).splitlines() if said.startswith("error: ")]
    assert len(errors) == 1, errors
    assert answer in errors[0]


def test_who_waits_is_told_that_nobody_runs_jobs(newcomer: Newcomer) -> None:
    newcomer.types("forge init .")
    waiting, error = newcomer.types("forge enqueue tasks.add 2 3 --wait --timeout 0.1", code=1).splitlines()
    assert waiting == ("waiting, but nobody serves the queue default; in another terminal: forge-master -c forge.toml")
    assert error.endswith("is still pending after 0.1 s")
