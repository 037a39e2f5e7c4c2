"""Completion by the Tab key: the scripts for the shells, and what the commands answer when those ask."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Shell

ROOT = Path(__file__).parents[2]


def environment(folder: Path) -> dict[str, str]:
    """With the two commands where a shell finds them, whether or not forge is installed."""
    for name, module in (("forge", "forge.cli"), ("forge-master", "forge.cli.master")):
        script = folder / "bin" / name
        script.parent.mkdir(exist_ok=True)
        script.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
        script.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name not in ("PROMPT_COMMAND", "INPUTRC")}
    return kept | {
        "PATH": f"{folder}/bin:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "HISTFILE": "",
        "TERM": "dumb",
    }


@pytest.mark.parametrize(
    ("shell", "installs"),
    [
        ("bash", "complete -o nosort -F _forge_completion forge\n"),
        ("zsh", "compdef _forge_completion forge\n"),
        ("fish", 'complete --no-files --command forge --arguments "(_forge_completion)";\n'),
    ],
)
def test_each_shell_has_a_script_for_both_commands(forge: Shell, shell: str, installs: str) -> None:
    script = forge.ok("completion", shell)
    assert installs in script
    master = installs.replace("_forge_", "_forge_master_").replace(" forge", " forge-master")
    assert master in script
    if path := shutil.which(shell):
        subprocess.run([path, "-n"], input=script, text=True, check=True, timeout=30)


def test_another_shell_is_refused(forge: Shell) -> None:
    said = "no SHELL tcsh; there are bash, fish, zsh   (forge completion --help)"
    assert forge.fails(2, "completion", "tcsh") == said


def tab(folder: Path, typed: str) -> str:
    """What stands in a real bash's line after the Tab key."""
    ours, theirs = os.openpty()
    command = ["bash", "--norc", "--noprofile", "-i"]
    seen = ""

    def wait_for(text: str) -> str:
        nonlocal seen
        while text not in seen:
            seen += os.read(ours, 65536).decode()
        before, _, seen = seen.partition(text)
        return before

    with subprocess.Popen(
        command, cwd=folder, env=environment(folder), stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    ) as bash:
        os.close(theirs)
        try:
            # The shell prints other words than were typed, since a terminal echoes those.
            os.write(ours, b'PS1="> "; eval "$(forge completion bash)"; echo rea""dy\n')
            wait_for("ready\r\n")
            # Ctrl-A puts the cursor before what Tab has made of the line, which then becomes words to print.
            os.write(ours, f"{typed}\t\x01echo 'made: \x05' en\"\"d\n".encode())
            wait_for("\r\nmade: ")
            return wait_for(" end\r\n")
        finally:
            bash.kill()
            os.close(ours)


@pytest.mark.parametrize(
    ("typed", "made"),
    [
        ("forge jo", "forge jobs "),
        ("forge jobs --sta", "forge jobs --status "),
        ("forge jobs --status de", "forge jobs --status dead "),
        ("forge -o json db migr", "forge -o json db migrate "),
        ("forge-master --che", "forge-master --check "),
        ("forge-master -c set", "forge-master -c settings.toml "),
    ],
)
def test_bash_completes_commands_options_and_their_values(folder: Path, typed: str, made: str) -> None:
    (folder / "settings.toml").write_text("")
    assert tab(folder, typed) == made


@pytest.mark.parametrize(
    ("shell", "words", "word", "answer"),
    [
        ("zsh", "forge jo", "1", "plain\njobs\nA page of jobs, newest first.\n"),
        ("fish", "forge jo", "jo", "plain,jobs\tA page of jobs, newest first.\n"),
        ("fish", "forge -o yaml jo", "jo", "plain,jobs\tA page of jobs, newest first.\n"),
        (
            "fish",
            "forge enqueue --bogus --payl",
            "--payl",
            "plain,--payload\tthe whole payload, instead of arguments\n",
        ),
    ],
)
def test_the_command_answers_a_shell(
    forge: Shell, monkeypatch: pytest.MonkeyPatch, shell: str, words: str, word: str, answer: str
) -> None:
    for name, value in (("_FORGE_COMPLETE", f"{shell}_complete"), ("COMP_WORDS", words), ("COMP_CWORD", word)):
        monkeypatch.setenv(name, value)
    assert forge.ok() == answer
