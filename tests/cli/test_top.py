"""`forge top`: one look in a pipe, a live screen in a terminal."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from forge import Forge
from forge.cli.top import Look
from forge.errors import ExitCode
from forge.job import Done, Ending, Throttled
from tests.cli.conftest import Shell

pytestmark = pytest.mark.impl_free

ROOT = Path(__file__).parents[2]


def fill(app: Forge) -> None:
    """Two done, one running, one waiting; and a queue that cools down."""
    storage = app.storage
    app.storage.set_queue("mail", max_workers=7)
    for _ in range(4):
        app.enqueue("send", {}, queue="mail")
    app.enqueue("call", {}, queue="web")
    who = storage.register("pod-a", ["mail", "web"], "host-a", 4711)
    claims = storage.claim(who, "mail", 3)
    storage.finalize([Ending(claim, Done()) for claim in claims[:2]])
    storage.finalize([Ending(claim, Throttled(None)) for claim in storage.claim(who, "web", 1)])


def test_one_look_shows_queues_pods_and_what_runs(forge: Shell, url: str) -> None:
    with Forge(url) as app:
        fill(app)
    lines = forge.ok("top", "--database", url, "--interval", "0.1").splitlines()
    assert lines[0].endswith("  1 pod, 1 job running")
    rows = {line.split()[0]: line.split() for line in lines[2:] if line}
    assert rows["queue"][:9] == ["queue", "workers", "pending", "scheduled", "running", "failed", "done", "dead", "per"]
    assert rows["mail"][:9] == ["mail", "7", "1", "0", "1", "0", "2", "0", "0.0"]
    assert "cooling down, again in" in next(line for line in lines if line.startswith("web"))
    pod = next(line.split() for line in lines if "host-a" in line)
    assert pod[1:3] == ["host-a", "4711"]
    assert pod[-2:] == ["mail,", "web"]
    assert "send  mail   1/5" in lines[-1]


def test_one_look_as_json(forge: Shell, url: str) -> None:
    with Forge(url) as app:
        fill(app)
    found = forge("top", "--database", url, "--interval", "0.1", "-o", "json").json
    mail, web = found["queues"]
    assert (mail["name"], mail["max_workers"], mail["counts"]["in_progress"]) == ("mail", 7, 1)
    assert (mail["ended"], mail["per_second"], web["ended"]) == ({"done": 2}, 0.0, {})
    (pod,) = found["pods"]
    assert (pod["host"], pod["pid"], pod["queues"], pod["running"]) == ("host-a", 4711, ["mail", "web"], 1)
    (running,) = found["running"]
    assert (running["kind"], running["attempt"]) == ("send", 1)


def test_the_rate_is_what_ended_between_two_looks(url: str) -> None:
    with Forge(url) as app:
        before = Look.at(app.storage)
        fill(app)
        after = Look.at(app.storage)
    assert after.rate("mail", before) * (after.now - before.now) > 1.99
    assert before.rate("mail", after) == 0, "pruning is not a negative rate"


def test_an_odd_interval_is_refused(forge: Shell, sqlite_url: str) -> None:
    said = forge.fails(ExitCode.USAGE, "top", "--interval", "0", "--database", sqlite_url)
    assert said == "--interval takes 0.1 to 3600 seconds"


def test_in_a_terminal_it_is_drawn_until_ctrl_c(folder: Path, sqlite_url: str) -> None:
    with Forge(sqlite_url) as app:
        fill(app)
    ours, theirs = os.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 40, 0, 0))
    command = [sys.executable, "-m", "forge.cli", "top", "--database", sqlite_url, "--interval", "0.1"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    for name in ("COLUMNS", "LINES"):
        env.pop(name, None)
    with subprocess.Popen(command, cwd=folder, env=env, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while seen.count(b"\x1b[H") < 3:
            seen += os.read(ours, 65536)
        process.send_signal(signal.SIGINT)
        try:
            while some := os.read(ours, 65536):
                seen += some
        except OSError:  # how the end of a terminal shows
            pass
        assert process.wait(30) == 0
    os.close(ours)
    assert b"ctrl-c ends it" in seen
    assert b"Traceback" not in seen
    assert seen.endswith(b"\x1b[?25h\x1b[?1049l"), "the terminal is as before"
    drawn = seen.decode().replace("\x1b[2K", "").replace("\x1b[H", "").split("\r\n")
    assert max(len(line) for line in drawn[:3]) <= 40 + len("\x1b[?1049h\x1b[?25l"), "no line wraps"
