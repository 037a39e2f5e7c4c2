"""Errors are for people: one line, what to do, and a code a script can tell apart. No password in any of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import apsw
import psycopg
import pytest

from forge.cli import main
from forge.cli.common import Cli
from forge.errors import ExitCode
from tests.cli.conftest import Shell

pytestmark = pytest.mark.impl_free

SECRET = "hunter2"
UNREACHABLE = f"postgresql://me:{SECRET}@127.0.0.1:1/jobs"


def test_an_unreachable_database_is_4(forge: Shell) -> None:
    said = forge.fails(ExitCode.DATABASE, "jobs", "--database", UNREACHABLE)
    assert "127.0.0.1" in said
    assert "check the URL" in said


@pytest.mark.parametrize("url", ["mysql://h/d", "oops", "postgresql+psycopg://h/d"])
def test_a_url_of_another_kind_of_database_is_3(forge: Shell, url: str) -> None:
    assert "use postgresql://… or sqlite:///" in forge.fails(ExitCode.CONFIG, "jobs", "--database", url)


def test_an_unknown_config_key_is_3(forge: Shell, folder: Path) -> None:
    (folder / "forge.toml").write_text('\ndatabse = "sqlite:///x.db"\n')
    assert forge.fails(ExitCode.CONFIG, "jobs") == "forge.toml:2: unknown key databse; did you mean database?"


def test_a_config_file_that_is_not_there_is_3(forge: Shell) -> None:
    assert forge.fails(ExitCode.CONFIG, "jobs", "-c", "x.toml") == "no file x.toml; `forge init DIR` makes one"


def test_a_missing_module_is_3(forge: Shell, folder: Path) -> None:
    (folder / "forge.toml").write_text('modules = ["nowhere.tasks"]\n')
    said = forge.fails(ExitCode.CONFIG, "tasks")
    assert said == f"no module nowhere.tasks in {folder} or installed; modules in forge.toml:1 names it"


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os\nimport missing_thing\n", "ModuleNotFoundError: No module named 'missing_thing' (broken.py:2)"),
        ("x = 1 +\n", "SyntaxError: invalid syntax (broken.py:1)"),
        ("def f():\n    raise OSError('no\\n  disk')\n\nf()\n", "OSError: no disk (broken.py:2)"),
    ],
)
def test_a_module_that_cannot_be_imported_is_3_with_the_place(
    forge: Shell, folder: Path, source: str, said: str
) -> None:
    (folder / "forge.toml").write_text('modules = ["broken"]\n')
    (folder / "broken.py").write_text(source)
    assert forge.fails(ExitCode.CONFIG, "tasks") == f"cannot import broken: {said}; modules in forge.toml:1 names it"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["enqeue", "x"], "no command enqeue; did you mean enqueue?   (forge --help)"),
        ([], "the following arguments are required: COMMAND   (forge --help)"),
        (["db"], "the following arguments are required: COMMAND   (forge db --help)"),
        (["db", "migrat"], "no command migrat; did you mean migrate?   (forge db --help)"),
        (["jobs", "--status", "deed"], "no --status deed; did you mean dead?   (forge jobs --help)"),
        (["jobs", "--limit", "many"], "argument --limit: invalid int value: 'many'   (forge jobs --help)"),
        (["jobs", "--limit", "0"], "--limit takes 1 to 10000"),
        (["jobs", "--colour"], "unrecognized arguments: --colour   (forge --help)"),
        (["queue", "set", "mail", "max_worker=3"], "a queue has no setting max_worker; did you mean max_workers?"),
        (["queue", "set", "mail", "max_workers=many"], "max_workers is a whole number, not many"),
        (["queue", "set", "mail", "paused=maybe"], "paused is true or false, not maybe"),
        (["queue", "set", "mail", "throttle=x"], "throttle is queue or hint, not x"),
        (["queue", "set", "mail", "paused"], "paused is not of the form key=value"),
    ],
)
def test_bad_usage_is_2(forge: Shell, words: list[str], said: str) -> None:
    forge.ok("db", "migrate")
    assert forge.fails(ExitCode.USAGE, *words) == said


def test_an_unknown_job_is_2(forge: Shell) -> None:
    forge.ok("db", "migrate")
    unknown = "0198c0de-0000-7000-8000-000000000001"
    for verb in ("show", "cancel", "retry", "requeue", "delete"):
        assert forge.fails(ExitCode.USAGE, verb, unknown) == f"no job {unknown}   (forge jobs lists them)"
    assert (
        forge.fails(ExitCode.USAGE, "show", "0198c0de")
        == "no job whose id starts with 0198c0de   (forge jobs lists them)"
    )
    assert forge.fails(ExitCode.USAGE, "show", "0198").startswith("0198 is too short for a job id")
    assert forge.fails(ExitCode.USAGE, "show", "mine").startswith("mine is not a job id")


@pytest.mark.parametrize(
    "words", [["jobs"], ["queues"], ["show", "0198c0de-0000"], ["prune"], ["cancel", "0198c0de-0000"]]
)
def test_a_missing_sqlite_database_is_6_and_stays_missing(forge: Shell, folder: Path, words: list[str]) -> None:
    said = forge.fails(ExitCode.SCHEMA, *words)
    assert said == "there is no database sqlite:///forge.db yet; run: forge db migrate"
    assert list(folder.iterdir()) == []


def test_a_missing_postgres_schema_is_6_even_for_enqueue(forge: Shell, empty_pg_url: str) -> None:
    for words in (["jobs"], ["enqueue", "k"]):
        assert "run: forge db migrate" in forge.fails(ExitCode.SCHEMA, *words, "--database", empty_pg_url)


def test_a_schema_too_old_or_too_new_is_6(forge: Shell, pg_url: str, sqlite_url: str) -> None:
    for url, statement, words in (
        (sqlite_url, "insert into forge_migration values (999, 'later', 0, null)", "upgrade forge"),
        (sqlite_url, "delete from forge_migration", "run: forge db migrate"),
        (pg_url, "insert into forge.migration (number, title) values (999, 'later')", "upgrade forge"),
        (pg_url, "delete from forge.migration", "run: forge db migrate"),
    ):
        change(url, statement)
        said = forge.fails(ExitCode.SCHEMA, "jobs", "--database", url)
        assert words in said, (url, said)


def change(url: str, statement: str) -> None:
    if url.startswith("sqlite"):
        apsw.Connection(url.removeprefix("sqlite:///")).execute(statement)
    else:
        with psycopg.connect(url) as conn:
            conn.execute(statement)


@pytest.mark.parametrize(
    "words",
    [
        ["jobs"],
        ["enqueue", "k"],
        ["db", "status"],
        ["db", "migrate"],
        ["doctor"],
        ["doctor", "-o", "json"],
        ["config", "show", "--origin"],
        ["config", "show", "-o", "json"],
    ],
)
@pytest.mark.parametrize(
    ("way", "url"),
    [
        ("flag", UNREACHABLE),
        ("joined flag", UNREACHABLE),
        ("variable", UNREACHABLE),
        ("file", UNREACHABLE),
        ("flag", f"postgresql://me:{SECRET}/word@127.0.0.1:1/jobs"),
        ("file", f"postgresql://127.0.0.1:1/jobs?password={SECRET}&nonsense=1"),
        ("variable", f"mysql://me:{SECRET}@h/d"),
        ("file", f"host=127.0.0.1 port=1 password={SECRET}"),
    ],
)
def test_no_password_ever_appears(
    forge: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], url: str, way: str
) -> None:
    if way == "variable":
        monkeypatch.setenv("DATABASE_URL", url)
    elif way == "file":
        (folder / "forge.toml").write_text(f'database = "{url}"\n')
    given = {"flag": ["--database", url], "joined flag": [f"--database={url}"]}.get(way, [])
    ran = forge(*words, *given)
    assert SECRET not in ran.out + ran.err


def test_a_bug_is_1_with_its_traceback_and_without_the_password(forge: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(cli: Cli) -> None:
        raise RuntimeError(f"cannot use {cli.config.database}")

    monkeypatch.setattr(Cli, "storage", broken)
    ran = forge("jobs", "--database", UNREACHABLE)
    assert ran.code == ExitCode.INTERNAL
    assert "RuntimeError: cannot use postgresql://me:***@127.0.0.1:1/jobs" in ran.err
    assert SECRET not in ran.err


def test_ctrl_c_is_130(forge: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(cli: Cli) -> None:
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Cli, "storage", interrupted)
    assert forge("jobs") == (130, "", "")


def test_a_reader_that_leaves_ends_the_command_quietly(folder: Path) -> None:
    # The pipe's reading end is closed before the command writes its first byte.
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "forge.cli", "db", "sql"]
    root = Path(__file__).parents[2]
    with os.fdopen(writing, "wb") as pipe:
        ran = subprocess.run(
            command, stdout=pipe, stderr=subprocess.PIPE, check=False, env={**os.environ, "PYTHONPATH": str(root)}
        )
    assert (ran.returncode, ran.stderr) == (141, b"")


def test_help_is_0_and_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    for name in [
        "init",
        "enqueue",
        "tasks",
        "show",
        "jobs",
        "cancel",
        "retry",
        "requeue",
        "delete",
        "queues",
        "queue",
        "prune",
        "db",
        "config",
        "doctor",
        "version",
    ]:
        assert f"\n    {name} " in out or f"\n    {name}\n" in out
