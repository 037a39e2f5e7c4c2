"""Signals that come while forge-master starts, and what "ready" means."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from forge.master import supervisor

from .conftest import TASKS, Pod, Project, eventually, making

pytestmark = pytest.mark.impl_free

# Runs in every Python of the test: the import of what $HOLD names waits until there is a file `go`.
HOLD = """
import os, sys, time

class Hold:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == os.environ["HOLD"]:
            open(os.path.join(os.environ["FOLDER"], "held"), "w").close()
            while not os.path.exists(os.path.join(os.environ["FOLDER"], "go")):
                time.sleep(0.01)

sys.meta_path.insert(0, Hold)
"""

# orjson is one of the first things that forge imports, the supervisor among the last. The zygote imports
# the tasks, and the master waits for it; then it has a loop and no worker.
MOMENTS = ["orjson", "forge.master.supervisor", "tasks", "hook"]


@pytest.fixture
def here(tmp_path: Path, sqlite_url: str) -> Iterator[Project]:
    """On one storage: none is involved."""
    yield from making(tmp_path, sqlite_url)


def starting(project: Project, moment: str, *words: str) -> Pod:
    """A master that has come so far, and no further until it may `go_on`."""
    hook = "\n\n@app.on_worker_start\ndef hold():\n    import hook_of_the_test\n"
    (project.folder / "hook_of_the_test.py").touch()
    (project.folder / "tasks.py").write_text(TASKS + (hook if moment == "hook" else ""))
    (project.folder / "sitecustomize.py").write_text(HOLD)
    project.env |= {
        "HOLD": "hook_of_the_test" if moment == "hook" else moment,
        "FOLDER": str(project.folder),
        "PYTHONPATH": str(project.folder),
    }
    pod = project.launch(*words)
    eventually((project.folder / "held").exists)
    return pod


def go_on(project: Project) -> None:
    (project.folder / "go").touch()


@pytest.mark.parametrize("moment", MOMENTS)
def test_signals_that_are_no_word_to_stop_are_obeyed_once_it_has_started(here: Project, moment: str) -> None:
    here.settings(f'[logging]\nfile = "{here.folder}/log"\n[queues.default]\nmax_workers = 1\n')
    pod = starting(here, moment)
    for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTTIN):
        pod.process.send_signal(number)
    go_on(here)

    def said(words: str) -> bool:
        assert pod.process.poll() is None, pod.lines
        log = here.folder / "log"
        return log.exists() and words in log.read_text()

    for words in ("ready in", "log reopened", "default: 2 workers", "reloading", "replaced"):
        eventually(lambda words=words: said(words))  # type: ignore[misc]
    job: Any = here.enqueue("add", 2, 3)
    assert job.result(timeout=30) == 5
    assert pod.stop() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGQUIT])
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_word_to_stop_while_it_starts_is_followed_in_order(here: Project, moment: str, number: int) -> None:
    here.settings("shutdown_timeout = 0.1\n[queues.default]\nmax_workers = 1\n")
    pod = starting(here, moment, "--pid-file", "forge.pid")
    assert pod.stop(number) == 0
    assert not (here.folder / "forge.pid").exists()
    assert not pod.says("ready") and not pod.says("Traceback"), pod.lines
    if moment in ("tasks", "hook"):
        assert pod.says("stopped")
    go_on(here)
    eventually(lambda: not pod.children())


# -- ready -----------------------------------------------------------------------------------------------------


class Systemd:
    """The other end of $NOTIFY_SOCKET."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        self._heard: list[str] = []

    def heard(self) -> list[str]:
        """Every line so far."""
        while True:
            try:
                self._heard += self._socket.recv(65536).decode().splitlines()
            except BlockingIOError:
                return self._heard

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def systemd(here: Project) -> Iterator[Systemd]:
    address = here.folder / "notify"
    made = Systemd(address)
    here.env["NOTIFY_SOCKET"] = str(address)
    yield made
    made.close()


BROKEN = '\n\n@app.on_worker_start\ndef connect():\n    raise ConnectionError("no route")\n'


def test_a_master_whose_workers_die_at_their_start_is_not_ready(here: Project, systemd: Systemd) -> None:
    (here.folder / "tasks.py").write_text(TASKS + BROKEN)
    here.configure(2)
    pod = here.launch()
    eventually(lambda: pod.says("not ready after 10 s: 0 of 2 workers of default; worker default/"))
    assert any("exited with 78" in line for line in pod.lines if "not ready after" in line)
    eventually(lambda: any(line.startswith("STATUS=starting: 0 of 2 workers") for line in systemd.heard()))
    assert pod.stop() == 0
    assert "READY=1" not in systemd.heard() and not pod.says("ready in")


def test_a_reload_that_mends_the_code_makes_it_ready(here: Project, systemd: Systemd) -> None:
    (here.folder / "tasks.py").write_text(TASKS + BROKEN)
    here.configure(2)
    pod = here.launch()
    eventually(lambda: pod.says("exited with 78"))
    (here.folder / "tasks.py").write_text(f"{TASKS}\n# mended\n")
    pod.process.send_signal(signal.SIGHUP)
    eventually(lambda: pod.says("2 workers ready in"))
    eventually(lambda: "READY=1" in systemd.heard())
    assert pod.stop() == 0


def test_a_reload_while_it_starts_says_nothing_of_being_ready(here: Project, systemd: Systemd) -> None:
    (here.folder / "tasks.py").write_text(TASKS + BROKEN)
    here.configure(1)
    pod = here.launch()
    eventually(lambda: pod.says("exited with 78"))
    pod.process.send_signal(signal.SIGHUP)
    eventually(lambda: systemd.heard().count("RELOADING=1") == 1)
    again: Callable[[], bool] = lambda: len([x for x in pod.lines if "exited with 78" in x]) >= 3  # noqa: E731
    eventually(again)
    assert pod.stop() == 0
    assert "READY=1" not in systemd.heard()


def test_a_pod_that_is_to_have_no_worker_is_ready_without_one(here: Project, systemd: Systemd) -> None:
    here.configure(0)
    pod = here.start()
    assert pod.says("0 workers ready in")
    eventually(lambda: "READY=1" in systemd.heard())


def test_the_time_after_which_a_slow_start_is_told_is_the_one_documented() -> None:
    assert supervisor.SLOW_START == 10.0
