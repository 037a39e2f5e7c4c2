"""A master among others: its pid file, what systemd hears of it, its log, and --reload."""

from __future__ import annotations

import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from forge.errors import ConfigError, ExitCode, LockedError
from forge.master.pod.pid_file import PidFile
from forge.master.pod.systemd import Systemd
from tests.master.conftest import Project, eventually

pytestmark = pytest.mark.impl_free

# -- the pid file


def test_the_pid_file_holds_the_pid_and_goes_with_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "forge.pid"
    held = PidFile(path)
    assert path.read_text() == f"{os.getpid()}\n"
    with pytest.raises(LockedError, match=rf"another forge-master \(pid {os.getpid()}\) holds .*forge\.pid; "):
        PidFile(path)
    held.close()
    assert not path.exists()
    PidFile(path).close()


def test_a_file_left_by_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "forge.pid"
    path.write_text("1\n")  # alive, whatever it is: the lock decides, not the number
    held = PidFile(path)
    assert path.read_text() == f"{os.getpid()}\n"
    held.close()


def test_a_file_that_is_no_pid_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "tasks.py"
    path.write_text("x = 1\n" * 20)
    with pytest.raises(ConfigError, match="is not a pid file"):
        PidFile(path)
    assert path.read_text() == "x = 1\n" * 20
    with pytest.raises(ConfigError, match=r"cannot write the pid file .*: No such file or directory"):
        PidFile(tmp_path / "no" / "forge.pid")


def test_a_file_that_somebody_replaced_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "forge.pid"
    held = PidFile(path)
    path.unlink()
    path.write_text("4711\n")
    held.close()
    assert path.read_text() == "4711\n"


def holders(path: Path, pids: set[int]) -> set[int]:
    """The processes that have the file open."""
    found = set()
    for pid in pids:
        for fd in Path(f"/proc/{pid}/fd").iterdir():
            if os.path.exists(fd) and os.path.realpath(fd) == str(path):
                found.add(pid)
    return found


@pytest.mark.parametrize("by", ["file", "flag"])
def test_a_second_master_with_the_same_pid_file_is_refused_with_5(project: Project, by: str) -> None:
    path = project.folder / "forge.pid"
    words = ["--pid-file", "forge.pid"] if by == "flag" else []
    if by == "file":
        toml = project.folder / "forge.toml"
        toml.write_text(f'pid_file = "forge.pid"\n{toml.read_text()}')
    pod = project.start(*words)
    assert path.read_text() == f"{pod.process.pid}\n"
    assert holders(path, {pod.process.pid, *pod.children()}) == {pod.process.pid}, "no child keeps the lock"
    second = project.run(*words)
    assert second.returncode == ExitCode.LOCKED
    (said,) = [line for line in second.stderr.splitlines() if line.startswith("error: ")]
    assert f"another forge-master (pid {pod.process.pid}) holds" in said
    assert "Traceback" not in second.stderr

    pod.process.kill()
    pod.process.wait()
    assert path.exists(), "nobody could remove it"
    third = project.start(*words)
    assert path.read_text() == f"{third.process.pid}\n"
    assert third.stop() == 0
    assert not path.exists()


# -- systemd


class NotifySocket:
    """The other end of $NOTIFY_SOCKET."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + address[1:] if address.startswith("@") else address)
        self._socket.setblocking(False)
        self.heard: list[str] = []

    def listen(self) -> list[str]:
        """Every line so far."""
        while True:
            try:
                self.heard += self._socket.recv(65536).decode().splitlines()
            except BlockingIOError:
                return self.heard

    def hears(self, line: str) -> None:
        eventually(lambda: line in self.listen())

    def close(self) -> None:
        self._socket.close()


@pytest.fixture(params=["path", "abstract"])
def notify_socket(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[NotifySocket]:
    made = NotifySocket(str(tmp_path / "notify") if request.param == "path" else f"@forge-test-{os.getpid()}")
    yield made
    made.close()


def test_without_the_variable_nothing_is_said() -> None:
    systemd = Systemd({"NOTIFY_SOCKET": "", "WATCHDOG_USEC": "1000"})
    systemd.ready("4 workers")
    systemd.alive(1.0)
    systemd.close()


def test_what_is_said_to_systemd(notify_socket: NotifySocket) -> None:
    env = {
        "NOTIFY_SOCKET": notify_socket.address,
        "WATCHDOG_USEC": "3000000",
        "WATCHDOG_PID": str(os.getpid()),
        "HOME": "/",
    }
    systemd = Systemd(env)
    assert env == {"HOME": "/"}, "children must not speak for the master"
    systemd.ready("4 workers")
    systemd.status("4 workers")
    systemd.status("3 workers")
    systemd.reloading()
    systemd.stopping()
    heard = notify_socket.listen()
    clock = next(line for line in heard if line.startswith("MONOTONIC_USEC="))
    assert heard == [
        *("READY=1", "STATUS=4 workers", "STATUS=3 workers"),
        *("RELOADING=1", clock, "STATUS=reloading"),
        *("STOPPING=1", "STATUS=stopping"),
    ]
    systemd.close()


def test_the_watchdog_is_fed_at_half_its_time(notify_socket: NotifySocket) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": notify_socket.address, "WATCHDOG_USEC": "3000000"})
    fed = []
    for now in (100.0, 100.1, 101.4, 101.5, 102.9, 103.0):
        systemd.alive(now)
        fed.append(len(notify_socket.listen()))
    assert fed == [1, 1, 1, 2, 2, 3]
    assert systemd.due == 104.5
    systemd.close()


def test_a_watchdog_meant_for_another_process_is_not_fed(notify_socket: NotifySocket) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": notify_socket.address, "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"})
    systemd.alive(100.0)
    assert notify_socket.listen() == []
    systemd.close()


def test_a_listener_that_is_gone_does_not_matter(notify_socket: NotifySocket) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": notify_socket.address})
    notify_socket.close()
    systemd.ready("4 workers")
    systemd.close()


def test_systemd_hears_of_a_masters_life(project: Project, notify_socket: NotifySocket) -> None:
    project.env |= {"NOTIFY_SOCKET": notify_socket.address, "WATCHDOG_USEC": "200000"}
    pod = project.start()
    notify_socket.hears("READY=1")
    assert "STATUS=4 workers, 0 jobs running" in notify_socket.listen()
    eventually(lambda: notify_socket.listen().count("WATCHDOG=1") >= 3)
    for child in pod.children():
        assert b"NOTIFY_SOCKET=" not in Path(f"/proc/{child}/environ").read_bytes()
    project.enqueue("slow", 1, 600)
    notify_socket.hears("STATUS=4 workers, 1 job running")
    pod.process.send_signal(signal.SIGQUIT)
    notify_socket.hears("STOPPING=1")
    assert pod.process.wait(60) == 0


# -- the log


def logging_to(project: Project, **settings: str) -> None:
    """Add the table to forge.toml."""
    with (project.folder / "forge.toml").open("a") as toml:
        toml.write("\n[logging]\n" + "".join(f'{key} = "{value}"\n' for key, value in settings.items()))


def test_the_log_is_text_for_people(project: Project) -> None:
    pod = project.start()
    assert pod.stop() == 0
    assert all(re.match(r"\d\d:\d\d:\d\d \S+  \S", line) for line in pod.lines), pod.lines


def test_the_log_is_json_for_machines_and_a_crash_is_a_warning(project: Project) -> None:
    logging_to(project, format="json")
    pod = project.start()
    project.enqueue("die_once", 1)
    eventually(lambda: pod.says("killed by SIGKILL"))
    assert pod.stop() == 0
    lines = [line for line in map(orjson.loads, pod.lines) if line["logger"] == "forge.master"]
    (crash,) = [line for line in lines if "killed by SIGKILL" in line["message"]]
    assert (crash["level"], crash["who"]) == ("warning", "master")
    assert {line["level"] for line in lines if line is not crash} == {"info"}


def test_the_log_has_a_level_and_a_file_that_usr1_reopens(project: Project) -> None:
    logging_to(project, file="forge.log", level="warning")
    file, moved = project.folder / "forge.log", project.folder / "forge.log.1"
    pod = project.launch()
    eventually(lambda: len(project.app.storage.pods()) == 1)
    project.enqueue("die_once", 1)
    eventually(lambda: "killed by SIGKILL" in file.read_text())
    file.rename(moved)
    pod.process.send_signal(signal.SIGUSR1)
    eventually(file.exists)
    project.enqueue("die_once", 2)
    eventually(lambda: "killed by SIGKILL" in file.read_text())
    assert pod.stop() == 0
    assert pod.lines == [], "nothing goes to standard error"
    assert "ready in" not in moved.read_text() + file.read_text(), "that is only information"


def test_a_log_file_that_cannot_be_written_is_one_line(project: Project) -> None:
    logging_to(project, file="no/forge.log")
    ran = project.run()
    assert ran.returncode == ExitCode.CONFIG
    assert ran.stderr.startswith("error: cannot write the log file")
    assert ran.stderr.count("\n") == 1


# -- development


def test_with_reload_a_change_is_taken_in_and_a_broken_one_is_not(project: Project) -> None:
    source = project.folder / "tasks.py"
    text = source.read_text()
    pod = project.start("--reload")
    eventually(lambda: pod.says("watching "))
    assert project.app.enqueue("tasks.add", {"args": [1, 2], "kwargs": {}}, keep_result=True).result(timeout=20) == 3

    source.write_text(text.replace("return a + b", "return a * b"))
    eventually(lambda: pod.says("tasks.py changed; reloading"))
    eventually(lambda: pod.says("workers replaced"))
    assert project.app.enqueue("tasks.add", {"args": [3, 4], "kwargs": {}}, keep_result=True).result(timeout=20) == 12

    source.write_text("def broken(:\n")
    eventually(lambda: pod.says("not reloaded: cannot import tasks: SyntaxError"))
    (said,) = [line for line in pod.lines if "not reloaded" in line]
    assert "(tasks.py:1)" in said
    assert project.app.enqueue("tasks.add", {"args": [3, 5], "kwargs": {}}, keep_result=True).result(timeout=20) == 15

    (project.folder / "notes.txt").write_text("nobody imports this")
    source.write_text(text)
    eventually(lambda: sum("workers replaced" in line for line in pod.lines) == 2)
    assert not pod.says("notes.txt")
    assert pod.stop() == 0
    assert not any("Traceback" in line for line in pod.lines)
