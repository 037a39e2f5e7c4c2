"""What forge-master looks at before it starts."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from forge.cli import master
from forge.errors import ExitCode

pytestmark = pytest.mark.impl_free

TASKS = "from forge import Forge\napp = Forge()\n@app.task\ndef add(a: int, b: int) -> int:\n    return a + b\n"
QUEUE = 'modules = ["tasks"]\n[queues.default]\n'


def check(capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = master.main(["-c", "forge.toml", "--check"])
    return code, *capsys.readouterr()


def test_check_changes_nothing_and_says_ok(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "tasks.py").write_text(TASKS)
    (folder / "forge.toml").write_text(f'pid_file = "forge.pid"\n{QUEUE}[pools.x]\nkind = "x"\nargv = ["sh", "x.sh"]\n')
    code, out, err = check(capsys)
    assert (code, out) == (0, "ok: forge-master can start\n")
    assert "storage sqlite:///forge.db (made at the first start)" in err
    assert not (folder / "forge.db").exists()
    assert not (folder / "forge.pid").exists()


@pytest.mark.parametrize(
    ("tasks", "toml", "code", "said"),
    [
        ("def", QUEUE, ExitCode.CONFIG, "cannot import tasks: SyntaxError"),
        (TASKS, 'modules = ["tasks"]\n[queues.a]\nworkers = 1\n', ExitCode.CONFIG, "unknown key queues.a.workers"),
        (
            TASKS,
            f'{QUEUE}[pools.x]\nkind = "x"\nargv = ["no-such-program-here"]\n',
            ExitCode.CONFIG,
            "pools.x: there is no program no-such-program-here; forge.toml:5 names it",
        ),
        (
            TASKS,
            f'{QUEUE}[commands.x]\nargv = ["./tool"]\n',
            ExitCode.CONFIG,
            "commands.x: there is no program ./tool; forge.toml:4 names it",
        ),
        (
            TASKS,
            f'{QUEUE}[pools.x]\nkind = "x"\nargv = ["sh"]\ncwd = "gone"\n',
            ExitCode.CONFIG,
            "pools.x: there is no folder",
        ),
    ],
)
def test_check_names_what_is_wrong(
    folder: Path, capsys: pytest.CaptureFixture[str], tasks: str, toml: str, code: int, said: str
) -> None:
    (folder / "tasks.py").write_text(tasks)
    (folder / "forge.toml").write_text(toml)
    found, out, err = check(capsys)
    assert (found, out) == (code, "")
    (error,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert said in error


def test_check_of_a_database_without_a_schema_is_6(
    folder: Path, capsys: pytest.CaptureFixture[str], empty_pg_url: str
) -> None:
    (folder / "tasks.py").write_text(TASKS)
    (folder / "forge.toml").write_text(f'database = "{empty_pg_url}"\n{QUEUE}')
    code, _, err = check(capsys)
    assert code == ExitCode.SCHEMA
    assert "run: forge db migrate" in err


def test_reload_without_watchfiles_says_what_to_install(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)  # as if it were not there
    assert master.main(["--reload"]) == ExitCode.USAGE
    assert capsys.readouterr().err == "error: --reload needs watchfiles; run: pip install 'forge-jobs[reload]'\n"
