"""forge-master, as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from forge import Forge
from forge.cli import master
from forge.errors import ExitCode

pytestmark = pytest.mark.impl_free

ROOT = Path(__file__).parents[2]
TASKS = """\
from forge import Forge
app = Forge()

@app.task
def add(a: int, b: int) -> int:
    return a + b
"""


@pytest.fixture
def project(folder: Path, url: str) -> Path:
    (folder / "forge.toml").write_text(f'database = "{url}"\nmodules = ["tasks"]\n[queues.default]\nmax_workers = 4\n')
    (folder / "tasks.py").write_text(TASKS)
    return folder


@pytest.fixture
def app(url: str) -> Iterator[Forge]:
    with Forge(url) as opened:
        yield opened


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), **more}


def start(folder: Path, *words: str, **more: str) -> subprocess.Popen[str]:
    code = "import sys; from forge.cli.master import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, "-c", "forge.toml", *words],
        cwd=folder,
        env=environment(**more),
        stderr=subprocess.PIPE,
        text=True,
    )


def read_until(process: subprocess.Popen[str], word: str) -> str:
    """What it logs up to the line with `word`."""
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if word in line:
            return "".join(lines)
    raise AssertionError(f"no {word!r} in:\n{''.join(lines)}")


def test_it_runs_jobs_until_told_to_stop(project: Path, app: Forge) -> None:
    with start(project) as process:
        started = read_until(process, "ctrl-c drains")
        assert "1 task from tasks: tasks.add" in started
        assert app.enqueue("tasks.add", {"args": [20, 22], "kwargs": {}}, keep_result=True).result(timeout=20) == 42
        assert [pod.queues for pod in app.storage.pods()] == [("default",)]
        assert app.storage.queues()["default"].max_workers == 4
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
        assert "stopped" in read_until(process, "stopped")
    assert app.storage.pods() == []


def test_settings_of_a_queue_that_operators_changed_are_left_alone(project: Path, app: Forge) -> None:
    app.storage.set_queue("default", max_workers=9)
    with start(project) as process:
        read_until(process, "ctrl-c drains")
        process.terminate()
        process.wait(timeout=20)
    assert app.storage.queues()["default"].max_workers == 9


def test_check_looks_and_starts_nothing(project: Path, app: Forge, capsys: pytest.CaptureFixture[str]) -> None:
    assert master.main(["-c", "forge.toml", "--check"]) == 0
    err = capsys.readouterr().err
    assert "1 task from tasks" in err
    assert app.storage.pods() == []


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (
            'modules = ["tasks"]\n',
            ExitCode.CONFIG,
            "no queues declared; add [queues.default] to forge.toml, or set FORGE_QUEUES",
        ),
        ("[queues.a]\n", ExitCode.CONFIG, "no tasks to run; name their modules"),
        ('modules = ["gone"]\n[queues.a]\n', ExitCode.CONFIG, "no module gone"),
        ('modules = ["tasks"]\nmodule = 1\n[queues.a]\n', ExitCode.CONFIG, "unknown key module; did you mean modules?"),
        (
            'modules = ["tasks"]\ndatabase = "postgresql://me:hunter2@127.0.0.1:1/x"\n[queues.a]\n',
            ExitCode.DATABASE,
            "cannot use PostgreSQL at 127.0.0.1",
        ),
    ],
)
def test_what_keeps_it_from_starting_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], text: str, code: int, said: str
) -> None:
    (folder / "tasks.py").write_text(TASKS)
    (folder / "forge.toml").write_text(text)
    assert master.main([]) == code
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert said in errors[0]
    assert "hunter2" not in errors[0]


def test_bad_usage_of_forge_master_is_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert master.main(["--workers", "4"]) == ExitCode.USAGE
    assert capsys.readouterr().err == "error: unrecognized arguments: --workers 4   (forge-master --help)\n"


def test_queues_come_from_the_variable_before_the_file(
    project: Path, app: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(project, FORGE_QUEUES=" mail, ,slack ") as process:
        read_until(process, "ctrl-c drains")
        assert [pod.queues for pod in app.storage.pods()] == [("mail", "slack")]
        process.terminate()
        assert process.wait(timeout=20) == 0
