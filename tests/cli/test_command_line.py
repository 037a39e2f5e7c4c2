"""What holds for every command: how words are read, what is printed where, and what is imported."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from forge.cli import HEADINGS, MODULES
from tests.cli.conftest import Shell

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("show", "the following arguments are required: ID   (forge show --help)"),
        ("enqueue", "the following arguments are required: KIND   (forge enqueue --help)"),
        ("queue set a", "the following arguments are required: KEY=VALUE   (forge queue set --help)"),
        ("schedules add a", "the following arguments are required: EXPR, TASK   (forge schedules add --help)"),
        ("jobs --limit", "argument --limit: expected one argument   (forge jobs --help)"),
        ("jobs -o", "argument -o/--output: expected one argument   (forge jobs --help)"),
        ("--database", "argument --database: expected one argument   (forge --help)"),
        ("enqueue x --wait=1", "argument --wait: ignored explicit argument '1'   (forge enqueue --help)"),
        ("enqueue x --delay soon", "argument --delay: invalid float value: 'soon'   (forge enqueue --help)"),
        ("-o yaml jobs", "no -o/--output yaml; there are json, text   (forge --help)"),
        ("jobs these", "unrecognized arguments: these   (forge --help)"),
        ("db migrate x y", "unrecognized arguments: x y   (forge --help)"),
        ("version -v", "unrecognized arguments: -v   (forge --help)"),
        ("show -vx 01", "unrecognized arguments: -x   (forge --help)"),
        ("show --colour 01", "unrecognized arguments: --colour   (forge --help)"),
        ("--colour jobs", "unrecognized arguments: --colour   (forge --help)"),
        ("enqueue --colour x", "unrecognized arguments: --colour   (forge --help)"),
        ("enqueue x 1 --colour=red", "unrecognized arguments: --colour=red   (forge --help)"),
    ],
)
def test_words_that_are_not_understood_are_said_in_one_line(forge: Shell, folder: Path, words: str, said: str) -> None:
    assert forge.fails(2, *words.split()) == said


def test_arguments_of_a_task_stand_before_and_behind_options_and_may_begin_with_a_dash(
    forge: Shell, project: Path
) -> None:
    for words in (["1", "--queue", "q", "-5"], ["--queue", "q", "--", "1", "-5"], ["1", "-5", "--queue", "q"]):
        job = forge.ok("enqueue", "tasks.add", *words).strip()
        assert forge("show", job, "-o", "json").json["payload"] == {"args": [1, -5], "kwargs": {}}
    job = forge.ok("enqueue", "raw", "--", "text=--help").strip()
    assert forge("show", job, "-o", "json").json["payload"] == {"text": "--help"}


def test_settings_may_stand_before_and_behind_the_name(forge: Shell, folder: Path) -> None:
    for words in (["-o", "json", "version"], ["version", "-ojson"], ["-o", "text", "version", "--output=json"]):
        assert "python" in forge(*words).json


def test_help_lists_every_command_under_its_heading(forge: Shell) -> None:
    said = forge.ok("--help")
    for heading, names in HEADINGS.items():
        assert f"  {heading}:\n" in said
        assert all(f"\n    {name} " in said for name in names)
    assert set(MODULES) <= {name for names in HEADINGS.values() for name in names}


def on_a_terminal(*words: str, **variables: str) -> bytes:
    """What a command prints there."""
    ours, theirs = os.openpty()
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    env |= {"PYTHONPATH": str(ROOT), "TERM": "xterm", **variables}
    command = [sys.executable, "-m", "forge.cli", *words]
    with subprocess.Popen(command, env=env, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        try:
            while some := os.read(ours, 65536):
                seen += some
        except OSError:  # how the end of a terminal shows
            pass
        assert process.wait(30) == 0
    os.close(ours)
    return seen.replace(b"\r\n", b"\n")


def test_a_terminal_has_colours_and_a_pipe_plain_columns(forge: Shell, project: Path) -> None:
    forge.ok("queue", "pause", "mail")
    piped = forge.ok("queues")
    assert piped.splitlines()[1].split() == ["mail", "1", *["0"] * 7, "-", "paused,", "nobody", "serves", "it"]
    seen = on_a_terminal("queues")
    assert b"\x1b[1mqueue\x1b[0m" in seen
    assert b"\x1b[33mpaused, nobody serves it\x1b[0m\n" in seen
    assert on_a_terminal("queues", TERM="dumb").decode() == piped
    assert b"\x1b[32mok\x1b[0m     config  " in on_a_terminal("doctor")


def test_a_narrow_terminal_loses_no_column(forge: Shell, project: Path) -> None:
    forge.ok("enqueue", "tasks.flaky")
    wide, narrow = (on_a_terminal("jobs", COLUMNS=columns) for columns in ("200", "30"))
    assert b"error" in narrow
    assert len(wide.splitlines()) == len(narrow.splitlines()) == 2


def test_how_far_a_prune_is_shows_on_a_terminal_alone(forge: Shell, project: Path) -> None:
    forge.ok("db", "migrate")
    said = "deleted 0 of 0 ended jobs old enough to look at\n"
    assert forge.ok("prune") == said
    seen = on_a_terminal("prune").decode()
    assert "pruning" in seen
    assert seen.endswith(f"\x1b[2K{said}"), "and goes when it is done"


@pytest.mark.parametrize(
    ("code", "absent"),
    [
        ("import forge", ["click", "rich", "forge.cli"]),
        ("from forge.cli import main; main(['--version'])", ["rich", "click.shell_completion", "forge.master"]),
        ("from forge.cli import main; main(['jobs', '-o', 'json'])", ["rich", "forge.cli.top", "forge.master"]),
        ("import forge.cli.master", ["rich"]),
    ],
)
def test_what_a_command_does_not_use_is_not_imported(forge: Shell, project: Path, code: str, absent: list[str]) -> None:
    forge.ok("db", "migrate")
    code += f"; import sys; print([name for name in {absent} if name in sys.modules], file=sys.stderr)"
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert ran.stderr == "[]\n"


def test_no_class_of_the_command_line_has_the_name_of_another() -> None:
    trees = (ast.parse(file.read_text()) for file in (ROOT / "forge" / "cli").glob("*.py"))
    names = Counter(node.name for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []
