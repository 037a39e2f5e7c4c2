"""`forge-master --check` runs the functions that a worker calls when it starts and stops."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.errors import ExitCode

from .test_starting import QUEUE, TASKS, check

pytestmark = pytest.mark.impl_free

HOOKS = """
import asyncio, os, sys, time

def note(word):
    with open("notes", "a") as file:
        file.write(f"{word} ")

@app.on_worker_start
async def connect():
    note("start")
    START

@app.on_worker_stop
def disconnect():
    note("stop")
    STOP
"""


def written(folder: Path, start: str = "pass", stop: str = "pass", settings: str = "ready_within = 1\n") -> None:
    (folder / "tasks.py").write_text(TASKS + HOOKS.replace("START", start).replace("STOP", stop))
    (folder / "forge.toml").write_text(settings + QUEUE)


def test_check_runs_them_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(folder, settings="")
    code, out, _ = check(capsys)
    assert (code, out) == (0, "ok: forge-master can start\n")
    assert (folder / "notes").read_text() == "start stop "


@pytest.mark.parametrize(
    ("start", "said"),
    [
        ("raise ConnectionError('no route')", "tasks.connect failed: ConnectionError: no route"),
        ("sys.exit(3)", "tasks.connect failed: SystemExit: 3"),
        ("os._exit(3)", "exited with 3"),
        ("os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
        ("time.sleep(600)", "it was not ready within 1 s"),
        ("await asyncio.sleep(600)", "it was not ready within 1 s"),
    ],
)
def test_check_says_why_a_worker_cannot_start(
    folder: Path, capsys: pytest.CaptureFixture[str], start: str, said: str
) -> None:
    written(folder, start=start)
    code, out, err = check(capsys)
    assert (code, out) == (ExitCode.START, "")
    assert f"error: a worker of default cannot start: {said}\n" in err


@pytest.mark.parametrize(
    ("stop", "said"),
    [
        ("raise OSError('gone')", "tasks.disconnect failed: OSError: gone"),
        ("os._exit(3)", "exited with 3"),
        ("time.sleep(600)", "it was not gone within 1 s"),
    ],
)
def test_check_says_why_a_worker_cannot_leave(
    folder: Path, capsys: pytest.CaptureFixture[str], stop: str, said: str
) -> None:
    written(folder, stop=stop)
    code, out, err = check(capsys)
    assert (code, out) == (ExitCode.START, "")
    assert f"error: a worker of default cannot leave in order: {said}\n" in err


def test_check_looks_at_the_database_before_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(folder, start="raise ConnectionError", settings='database = "postgresql://127.0.0.1:1/x"\n')
    code, _, err = check(capsys)
    assert code == ExitCode.DATABASE
    assert "tasks.connect" not in err
    assert not (folder / "notes").exists()
