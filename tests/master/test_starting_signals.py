"""Signals that come while forge-master starts, and what "ready" means."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forge.errors import ExitCode
from forge.master import loop

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

# orjson is one of the first things that forge imports, the loop among the last. The zygote imports
# the tasks, and the master waits for it; then it has a loop and no worker.
MOMENTS = ["orjson", "forge.master.loop", "tasks", "hook"]


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


def test_a_master_one_of_whose_workers_dies_at_its_start_is_not_ready(here: Project, systemd: Systemd) -> None:
    broken = BROKEN.replace("    raise", "    if '/1' in open('/proc/self/cmdline').read():\n        raise")
    (here.folder / "tasks.py").write_text(TASKS + broken)
    here.configure(2)
    pod = here.launch()
    eventually(lambda: pod.says("not ready after 10 s: 1 of 2 workers of default; worker default/1 ("))
    assert any("exited with 78: tasks.connect" in line for line in pod.lines if "not ready after" in line)
    eventually(lambda: any(line.startswith("STATUS=starting: 1 of 2 workers") for line in systemd.heard()))
    assert pod.stop() == 0
    assert "READY=1" not in systemd.heard() and not pod.says("ready in")


def test_a_master_none_of_whose_workers_can_start_says_that_it_stops(here: Project, systemd: Systemd) -> None:
    (here.folder / "tasks.py").write_text(TASKS + BROKEN)
    here.configure(2)
    assert here.run().returncode == ExitCode.START
    assert systemd.heard()[-2:] == ["STOPPING=1", "STATUS=stopping"]
    assert "READY=1" not in systemd.heard()


@pytest.mark.parametrize("settings", ["[queues.default]\n", "[queues.default]\nworkers = 1\n"])
def test_a_reload_that_fails_is_over_all_the_same(here: Project, systemd: Systemd, settings: str) -> None:
    pod = here.start()
    eventually(lambda: "READY=1" in systemd.heard())
    (here.folder / "tasks.py").write_text(TASKS + BROKEN)
    here.settings(settings)
    pod.process.send_signal(signal.SIGHUP)
    eventually(lambda: pod.says("not reloaded"))
    eventually(lambda: systemd.heard().count("READY=1") == 2)
    words = [word for word in systemd.heard() if word in ("READY=1", "RELOADING=1")]
    assert words == ["READY=1", "RELOADING=1", "READY=1"]
    assert pod.stop() == 0


def test_a_reload_while_it_starts_says_nothing_of_being_ready(here: Project, systemd: Systemd) -> None:
    here.configure(1)
    pod = starting(here, "hook")
    (here.folder / "tasks.py").write_text(TASKS + BROKEN)
    pod.process.send_signal(signal.SIGHUP)
    eventually(lambda: pod.says("not reloaded: a worker of default cannot start"))
    assert systemd.heard().count("RELOADING=1") == 1
    assert "READY=1" not in systemd.heard()
    go_on(here)
    pod.ready()
    eventually(lambda: "READY=1" in systemd.heard())
    assert pod.stop() == 0


def test_a_pod_that_is_to_have_no_worker_is_ready_without_one(here: Project, systemd: Systemd) -> None:
    here.configure(0)
    pod = here.start()
    assert pod.says("0 workers ready in")
    eventually(lambda: "READY=1" in systemd.heard())


def test_the_time_after_which_a_slow_start_is_told_is_the_one_documented() -> None:
    assert loop.SLOW_START == 10.0
