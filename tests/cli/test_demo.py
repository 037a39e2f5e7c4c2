"""The demo: a real master, watched through its database. However it ends, it leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.master.conftest import alive, eventually

pytestmark = pytest.mark.impl_free

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "forge.cli.demo"]


@pytest.fixture
def environment(folder: Path) -> dict[str, str]:
    """Temporary folders go where the test can look for what is left."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(folder), "DATABASE_URL": "sqlite:///elsewhere.db"}


def below(pid: int) -> set[int]:
    """Every process that descends from this one."""
    try:
        children = {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}
    except FileNotFoundError:
        return set()
    return children.union(*map(below, children))


class Watched:
    """The demo in a terminal, or with its output in a pipe, and the processes it was seen to have."""

    def __init__(self, folder: Path, env: dict[str, str], *, terminal: bool) -> None:
        self.folder, self.seen = folder, b""
        self._ours, theirs = os.openpty() if terminal else os.pipe()
        self.process = subprocess.Popen(COMMAND, cwd=folder, env=env, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self.family: set[int] = set()

    def until(self, words: bytes) -> None:
        """Read until it says so."""
        while words not in self.seen:
            self._read()
            self.family |= below(self.process.pid)

    def ends(self) -> int:
        """Its exit code, once all it said has been read."""
        try:
            while self._read():
                pass
        except OSError:  # how the end of a terminal shows
            pass
        return self.process.wait(30)

    def _read(self) -> bytes:
        some = os.read(self._ours, 65536)
        self.seen += some
        return some

    def leaves_nothing(self) -> None:
        assert len(self.family) >= 8, "the master, its zygote and six workers were there"
        eventually(lambda: not any(alive(pid) for pid in self.family))
        assert list(self.folder.iterdir()) == []

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


Watch = Callable[..., Watched]


@pytest.fixture
def watch(folder: Path, environment: dict[str, str]) -> Iterator[Watch]:
    made: list[Watched] = []

    def start(*, terminal: bool) -> Watched:
        made.append(Watched(folder, environment, terminal=terminal))
        return made[-1]

    yield start
    for each in made:
        each.close()


def test_it_ends_by_itself_where_nobody_watches(folder: Path, environment: dict[str, str]) -> None:
    ran = subprocess.run(COMMAND, cwd=folder, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    for words in (
        r"^\S+ master  6 workers ready in ",
        r" failed, again (in 0\.\d+ s|now): simulated failure at step ",
        r"^summarize_text +…0026  snoozed, again ",
        r"^webhook_delivery +…0027  throttled, queue webhooks cools down, again ",
        r"^send_email +…0025  attempt 3  dead after 3 attempts: 550 no such mailbox$",
        r"^resize_image +…0028  crashed: worker default/\d \(\d+\) killed by SIGKILL; released, runs again$",
        r"^resize_image +…0028  attempt 1  done$",
        r"^all ended after ",
        r"^\S+ master  stopped",
    ):
        assert re.search(words, ran.stdout, re.MULTILINE), words
    total = next(line.split() for line in ran.stdout.splitlines() if line.startswith("total"))
    assert total[:6] == ["total", "40", "0", "0", "39", "1"]
    assert total[-1] == "1", "crashes"
    assert list(folder.iterdir()) == []


def test_it_stays_up_in_a_terminal_until_ctrl_c_which_drains_the_master(watch: Watch) -> None:
    demo = watch(terminal=True)
    demo.until(b"Ctrl-C ends it.")
    assert b"\x1b[2K" in demo.seen, "drawn over and over"
    demo.process.send_signal(signal.SIGINT)
    assert demo.ends() == 0
    assert b"master  stopped" in demo.seen
    assert demo.seen.rindex(b"\x1b[?25h") > demo.seen.rindex(b"\x1b[?25l"), "the cursor is back"
    demo.leaves_nothing()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("terminal", [True, False])
def test_ended_in_the_middle_it_leaves_nothing(watch: Watch, number: int, terminal: bool) -> None:
    demo = watch(terminal=terminal)
    demo.until(b"jobs enqueued")
    demo.process.send_signal(number)
    assert demo.ends() == 130
    assert b"master  stopped" in demo.seen
    assert b"Traceback" not in demo.seen
    demo.leaves_nothing()


def test_a_master_that_dies_is_shown_with_its_last_lines(watch: Watch) -> None:
    demo = watch(terminal=False)
    demo.until(b"jobs enqueued")
    (master,) = (
        int(pid) for pid in Path(f"/proc/{demo.process.pid}/task/{demo.process.pid}/children").read_text().split()
    )
    os.kill(master, signal.SIGKILL)
    assert demo.ends() == 1
    shown = demo.seen.decode()
    assert shown.count("workers ready in") == 2, "once when it started, once among the last lines"
    assert "error: forge-master ended by itself (killed by SIGKILL); its last lines are above" in shown
    demo.leaves_nothing()


def test_killed_itself_it_takes_the_master_along(watch: Watch) -> None:
    demo = watch(terminal=False)
    demo.until(b"jobs enqueued")
    demo.process.kill()
    demo.process.wait()
    eventually(lambda: not any(alive(pid) for pid in demo.family))
