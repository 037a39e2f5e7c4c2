"""`cmd_exec`: what a payload may run, and what becomes of the job, its process, and what that has started."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge.config import CommandConfig, CommandsConfig
from forge.job import Claim, Dead, Done, Ending, Failed
from forge.master.programs.commands import Wrong, order_of

from .conftest import alive
from .rig import Rig

pytestmark = pytest.mark.impl_free

ANY = "[commands]\nallow_any = true\n"
SHOW = '[commands.show]\nargv = ["printf", "<%s>", "a {word} b", "{word}{{}}{number}"]\nenv = { WORD = "x" }\n'


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "ledger"
    file.touch()
    monkeypatch.setenv("LEDGER", str(file))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    return file


@pytest.fixture
def rig(tmp_path: Path, ledger: Path) -> Iterator[Rig]:
    made = Rig(tmp_path, ANY + SHOW)
    yield made
    made.close()


def sh(rig: Rig, script: str, timeout: int = 60, **payload: Any) -> Ending:
    return rig.run("cmd_exec", {"argv": ["sh", "-c", script], **payload}, timeout=timeout)


def message(ending: Ending) -> str:
    assert isinstance(ending.outcome, Failed | Dead), ending
    return ending.outcome.message


def pids(ledger: Path) -> list[int]:
    return [int(line) for line in ledger.read_text().split()]


def test_the_payload_fills_the_words_of_a_named_command_and_each_stays_one_word(rig: Rig) -> None:
    hostile = "$(id); `id` \"' * ~ {number} --x\n|"
    ending = rig.run("cmd_exec", {"command": "show", "args": {"word": hostile, "number": 7}})
    assert isinstance(ending.outcome, Done)
    assert json.loads(ending.result or b"") == {"stdout": f"<a {hostile} b><{hostile}{{}}7>"}


def test_a_result_that_nobody_keeps_is_not_stored(rig: Rig) -> None:
    ending = rig.run("cmd_exec", {"command": "show", "args": {"word": "w", "number": 1.5}}, keep_result=False)
    assert isinstance(ending.outcome, Done)
    assert ending.result is None


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ([], "the payload must be an object"),
        ({}, "argv must be a list of words"),
        ({"command": "shaw"}, 'no command "shaw"; did you mean show?'),
        ({"command": 7}, "no command 7"),
        ({"command": "show"}, "the command show needs word, number in args"),
        ({"command": "show", "args": ["a"]}, "args must be an object with the fields of the command show"),
        ({"command": "show", "args": {"word": "a"}}, "the command show needs number in args"),
        (
            {"command": "show", "args": {"word": "a", "number": 1, "wird": 1}},
            "args of the command show has wird, which is not known there; did you mean word?",
        ),
        ({"command": "show", "args": {"word": ["a"], "number": 1}}, 'args.word must be text or a number, not ["a"]'),
        ({"command": "show", "args": {"word": True, "number": 1}}, "args.word must be text or a number, not true"),
        ({"command": "show", "args": {"word": "a\0b", "number": 1}}, "args.word has a NUL character in it"),
        ({"command": "show", "argv": ["id"]}, "the payload has argv, which is not known there"),
        ({"argv": []}, "argv must be a list of words"),
        ({"argv": "ls"}, "argv must be a list of words"),
        ({"argv": ["ls", None]}, "argv[1] must be text or a number, not null"),
        (
            {"argv": ["ls"], "timeout": 5},
            "the payload has timeout, which is not known there; did you mean timeout_secs?",
        ),
        ({"argv": ["ls"], "timeout_secs": 0}, "timeout_secs must be a whole number of at least 1"),
        ({"argv": ["ls"], "env": {"A=B": "c"}}, "env has a name that no variable can have"),
        ({"argv": ["ls"], "env": ["A"]}, "env must be an object of texts"),
        ({"argv": ["ls"], "cwd": 7}, "cwd must be text"),
        ({"argv": ["ls"], "stdin": 7}, "stdin must be text"),
    ],
)
def test_a_payload_that_makes_no_sense_is_dead_with_a_sentence(payload: object, said: str) -> None:
    command = CommandConfig(argv=("printf", "{word}", "{number}"))
    with pytest.raises(Wrong) as caught:
        order_of(claim_of(payload), CommandsConfig(allow_any=True, named={"show": command}), "/")
    assert said in str(caught.value)


def claim_of(payload: object) -> Claim:
    return Claim(0, None, None, 1, "default", "cmd_exec", json.dumps(payload).encode(), 1, 5, 60, True, False)  # type: ignore[arg-type]


def test_only_named_commands_run_unless_any_is_allowed(tmp_path: Path, ledger: Path) -> None:
    rig = Rig(tmp_path, SHOW)
    ending = sh(rig, "true")
    assert isinstance(ending.outcome, Dead)
    assert "only with [commands] allow_any = true" in ending.outcome.message
    rig.close()


def test_without_commands_the_kind_is_not_taken(tmp_path: Path, ledger: Path) -> None:
    rig = Rig(tmp_path, "")
    assert rig.programs.take([claim_of({"argv": ["true"]})]) == [claim_of({"argv": ["true"]})]
    rig.close()


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 3", "exit 3"),
        ("echo out; echo err >&2; exit 1", "exit 1: err"),
        ("echo out; exit 2", "exit 2: out"),
        ("echo; echo >&2; exit 2", "exit 2"),
        ("kill -KILL $$", "killed by SIGKILL"),
        ("nosuchprogram", "exit 127: sh: 1: nosuchprogram: not found"),
        ("printf 'x%.0s' $(seq 300) >&2; exit 1", "exit 1: …" + "x" * 256),
        (r"printf '\377\000z' >&2; exit 1", "exit 1: \ufffd\ufffdz"),
    ],
)
def test_a_command_that_fails_says_how_it_ended(rig: Rig, script: str, said: str) -> None:
    ending = sh(rig, script)
    assert message(ending) == said
    assert isinstance(ending.outcome, Failed)
    assert 1.0 <= -ending.delay <= 3.0


def test_a_program_or_folder_that_is_missing_fails_the_job(rig: Rig) -> None:
    missing = rig.run("cmd_exec", {"argv": ["nosuchprogram"]})
    assert message(missing) == "exit 127: forge: cannot run nosuchprogram: No such file or directory"
    nowhere = rig.run("cmd_exec", {"argv": ["true"], "cwd": "/nosuchfolder"})
    assert message(nowhere) == "exit 127: forge: cannot run true: No such file or directory"


def test_a_free_command_has_its_own_input_variables_and_folder(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    text = "line\n" * 50_000  # more than a pipe holds
    ending = sh(
        rig, 'cat | wc -c; echo "$WORD"; pwd; echo "$LEDGER"', stdin=text, env={"WORD": "a b"}, cwd=f"{tmp_path}/deep"
    )
    assert json.loads(ending.result or b"")["stdout"].split("\n") == [
        str(len(text)),
        "a b",
        f"{tmp_path}/deep",
        str(tmp_path / "ledger"),
        "",
    ]


def test_words_as_long_as_the_system_takes_arrive(rig: Rig) -> None:
    words = ["x" * 100_000] * 8  # an order of many pieces
    ending = rig.run("cmd_exec", {"argv": ["sh", "-c", 'printf %s "$*" | wc -c', "sh", *words]})
    assert json.loads(ending.result or b"") == {"stdout": "800007\n"}


def test_input_that_is_not_read_and_closed_outputs_hurt_nobody(rig: Rig) -> None:
    assert isinstance(sh(rig, "exec <&-; true", stdin="x" * 500_000).outcome, Done)
    assert isinstance(sh(rig, "exec >&- 2>&-; sleep 0.5").outcome, Done)


def test_output_is_read_beside_errors_and_only_its_end_is_kept(rig: Rig) -> None:
    ending = sh(rig, "head -c 300000 /dev/zero | tr '\\0' e >&2; head -c 3000000 /dev/zero | tr '\\0' o; echo end")
    stdout = json.loads(ending.result or b"")["stdout"]
    assert stdout.startswith("…oooo")
    assert stdout.endswith("oend\n")
    assert len(stdout) == 65_537


def test_a_command_past_its_time_is_killed_with_what_it_started(rig: Rig, ledger: Path) -> None:
    ending = sh(rig, 'trap "" TERM; sleep 600 & echo $! >> $LEDGER; echo $$ >> $LEDGER; wait; wait', timeout_secs=1)
    assert message(ending) == "timeout after 1 s"
    rig.until(lambda: not any(map(alive, pids(ledger))))
    assert message(sh(rig, "sleep 600", timeout=1, timeout_secs=500)) == "timeout after 1 s"


def test_what_a_command_leaves_running_is_killed_when_it_ends(rig: Rig, ledger: Path) -> None:
    assert isinstance(sh(rig, "sleep 600 & echo $! >> $LEDGER").outcome, Done)
    rig.until(lambda: not any(map(alive, pids(ledger))))


def test_one_that_escapes_its_group_and_holds_the_output_does_not_hold_the_job(rig: Rig, ledger: Path) -> None:
    ending = sh(
        rig, 'setsid sh -c "echo \\$\\$ >> $LEDGER; exec sleep 600" & while [ ! -s $LEDGER ]; do :; done; echo out'
    )
    assert json.loads(ending.result or b"") == {"stdout": "out\n"}
    (escaped,) = pids(ledger)
    os.kill(escaped, signal.SIGKILL)


def test_a_cancelled_command_is_killed_with_what_it_started(rig: Rig, ledger: Path) -> None:
    claim = rig.enqueue("cmd_exec", {"argv": ["sh", "-c", "sleep 600 & echo $! >> $LEDGER; wait"]})
    rig.until(lambda: pids(ledger))
    rig.programs.cancel({(claim.id, claim.token)})
    assert type(rig.ending(claim).outcome).__name__ == "Cancelled"
    rig.until(lambda: not any(map(alive, pids(ledger))))


def test_one_cancelled_before_its_process_is_known_is_killed_when_it_is(rig: Rig) -> None:
    claim = rig.enqueue("cmd_exec", {"argv": ["sleep", "600"]})
    rig.programs.tick(0.0)  # the order is out, the answer not read
    rig.programs.cancel({(claim.id, claim.token)})
    assert type(rig.ending(claim).outcome).__name__ == "Cancelled"
    rig.until(lambda: rig.programs.gone)


@pytest.mark.parametrize("how", [lambda rig: rig.programs.lost(), lambda rig: rig.programs.close()])
def test_commands_that_run_are_killed_when_the_pod_stops(rig: Rig, how: Callable[[Rig], None], ledger: Path) -> None:
    rig.enqueue("cmd_exec", {"argv": ["sh", "-c", "echo $$ >> $LEDGER; exec sleep 600"]})
    rig.until(lambda: pids(ledger))
    how(rig)
    rig.until(lambda: rig.programs.gone and not any(map(alive, pids(ledger))))


def test_no_more_run_than_their_queue_has_places(rig: Rig, ledger: Path) -> None:
    rig.places = 2
    script = 'echo "+" >> $LEDGER; sleep 0.1; echo "-" >> $LEDGER'
    claims = [rig.enqueue("cmd_exec", {"argv": ["sh", "-c", script]}) for _ in range(8)]
    assert all(isinstance(rig.ending(claim).outcome, Done) for claim in claims)
    running = [0]
    for sign in ledger.read_text().split():
        running.append(running[-1] + (1 if sign == "+" else -1))
    assert max(running) == 2
    assert rig.programs.in_hand == 0


def test_signals_are_as_a_program_expects_them(rig: Rig) -> None:
    """The zygote ignores TERM and INT; a program must not inherit that."""
    status = rig.run("cmd_exec", {"argv": ["cat", "/proc/self/status"]})
    lines = [line.split() for line in json.loads(status.result or b"")["stdout"].splitlines()]
    own = ~(0b11 << 31)  # not 32 and 33: they are the C library's, nobody can set them, and some runners ignore one
    masks = {words[0]: int(words[1], 16) & own for words in lines if words[0] in ("SigBlk:", "SigIgn:", "SigCgt:")}
    assert masks == {"SigBlk:": 0, "SigIgn:": 0, "SigCgt:": 0}


def test_a_program_has_no_descriptor_but_its_own_three(rig: Rig) -> None:
    listed = rig.run("cmd_exec", {"argv": ["ls", "/proc/self/fd"]})
    assert json.loads(listed.result or b"") == {"stdout": "0\n1\n2\n3\n"}  # the last is the folder that it lists


def test_two_hundred_commands_leave_no_descriptor_and_no_zombie(rig: Rig) -> None:
    def open_files() -> int:
        return len(os.listdir("/proc/self/fd"))

    assert isinstance(sh(rig, "true").outcome, Done)
    zygote = rig.zygotes[0].process.pid
    before, before_there = open_files(), len(os.listdir(f"/proc/{zygote}/fd"))
    claims = [rig.enqueue("cmd_exec", {"argv": ["true"]}) for _ in range(200)]
    assert all(isinstance(rig.ending(claim).outcome, Done) for claim in claims)
    rig.until(lambda: rig.programs.gone)
    rig.until(lambda: open_files() <= before and len(os.listdir(f"/proc/{zygote}/fd")) <= before_there)
    assert Path(f"/proc/{zygote}/task/{zygote}/children").read_text() == ""
