"""Children of a real master that say what no child may: they are killed, their jobs count the crash, and nobody else
notices."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from forge.job import Status

from .conftest import TASKS, Project, alive, eventually
from .test_surviving import zygote

pytestmark = pytest.mark.impl_free

# Finds the master's socket by who made it, and writes there what a job tells it to.
HOSTILE = r"""
import socket, stat, struct, threading


def sockets_of(pid):
    for name in os.listdir("/proc/self/fd"):
        try:
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                with socket.socket(fileno=os.dup(int(name))) as found:
                    made_by = struct.unpack("3i", found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
                if made_by == pid:
                    yield int(name)
        except OSError:
            pass


def parent_of(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])


def write(fd, data):
    os.set_blocking(fd, True)
    while data:
        data = data[os.write(fd, data):]


@app.task
def say(what: str) -> None:
    note("START", what, os.getpid())
    said = {
        "array": b"[]\n",
        "text": b'"x"\n',
        "random": os.urandom(5000) + b"\n",
        "deep": b"[" * 100_000 + b"\n",
        "huge": b"x" * (17 * 1024 * 1024),
        "other hello": b'{"hello":%d,"capacity":1000000}\n' % int(open("innocent").read()),
        "other job": b'{"id":"%b","status":"ok"}\n' % (b"0" * 32),
        "odd progress": b'{"say":"progress","id":"x","percent":1e300}\n',
        "odd question": b'{"ask":[],"for":"enqueue","jobs":{}}\n',
    }[what]
    (fd,) = sockets_of(parent_of(os.getppid()))
    write(fd, said)
    time.sleep(600)
"""


@pytest.fixture
def innocent(project: Project) -> Iterator[int]:
    """A process that has nothing to do with it, in a group of its own."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        (project.folder / "innocent").write_text(str(process.pid))
        yield process.pid
        process.kill()


WORDS = ["array", "text", "random", "deep", "huge", "other hello", "other job", "odd progress", "odd question"]


def test_workers_that_say_anything_at_all_are_killed_and_their_jobs_count_it(project: Project, innocent: int) -> None:
    (project.folder / "tasks.py").write_text(TASKS + HOSTILE)
    pod = project.start()
    bad: dict[str, Any] = {word: project.enqueue("say", word) for word in WORDS}
    good: list[Any] = [project.enqueue("add", n, 1) for n in range(50)]
    assert [job.result(timeout=60) for job in good] == [n + 1 for n in range(50)]
    for word, job in bad.items():
        eventually(lambda job=job: job.status == Status.DEAD)  # type: ignore[misc]
        found = job.job()
        assert found.crashes == 3, word
        assert "broke the protocol" in str(found.last_error), word
    starts = {word: sum(word in " ".join(event) for event in project.events("START")) for word in WORDS}
    assert set(starts.values()) <= {3, 4}, "three times alone, and once more if it was not at first"
    assert alive(innocent)
    again: Any = project.enqueue("add", 2, 3)
    assert again.result(timeout=30) == 5
    assert not pod.says("a bug in forge")
    assert pod.stop() == 0


PRETENDER = """

@app.on_worker_start
def pretend():
    if not os.path.exists("pretended"):
        open("pretended", "w").close()
        (fd,) = sockets_of(parent_of(os.getppid()))
        write(fd, b'{"hello":%d,"capacity":1}\\n' % int(open("innocent").read()))
"""


def test_a_worker_does_not_decide_whom_its_master_kills(project: Project, innocent: int) -> None:
    (project.folder / "tasks.py").write_text(TASKS + HOSTILE + PRETENDER)
    project.configure(1)
    pod = project.start()
    assert pod.says(f"it says that it is process {innocent} and is ")
    job: Any = project.enqueue("add", 2, 3)
    assert job.result(timeout=30) == 5
    assert alive(innocent)
    assert pod.stop() == 0


# A thread in the zygote, which a module should not leave there. The zygote's own socket is the other one.
HOSTILE_ZYGOTE = """

def when_told():
    while not os.path.exists("now"):
        time.sleep(0.01)
    said = open("now", "rb").read().replace(b"INNOCENT", open("innocent", "rb").read())
    for fd in sockets_of(os.getppid()):
        write(fd, said)


if not os.path.exists("now"):
    threading.Thread(target=when_told, daemon=True).start()
"""


@pytest.mark.parametrize(
    "said",
    [
        b"[]\n",
        b"x" * (17 * 1024 * 1024),
        b'{"started":99,"pid":INNOCENT}\n',
        b'{"forked":"default/0","serial":1,"pid":INNOCENT}\n',
    ],
    ids=["array", "huge", "started", "forked"],
)
def test_a_zygote_that_says_anything_at_all_is_killed_and_replaced(
    project: Project, innocent: int, said: bytes
) -> None:
    (project.folder / "tasks.py").write_text(TASKS + HOSTILE + HOSTILE_ZYGOTE)
    pod = project.start()
    job: Any = project.enqueue("wait_for", "go")
    eventually(lambda: project.events("START"))
    before, old = zygote(pod), pod.children()
    (project.folder / "later").write_bytes(said)
    (project.folder / "later").rename(project.folder / "now")
    eventually(lambda: pod.says("the zygote broke the protocol"))
    eventually(lambda: len(project.events("START")) == 2)
    (project.folder / "go").touch()
    assert job.result(timeout=30) == "went"
    assert job.job().attempts == 1
    assert zygote(pod) != before
    eventually(lambda: not any(alive(pid) for pid in old))
    assert alive(innocent)
    assert pod.stop() == 0


def test_an_end_that_a_zygote_makes_up_ends_nobody(project: Project, innocent: int) -> None:
    (project.folder / "tasks.py").write_text(TASKS + HOSTILE + HOSTILE_ZYGOTE)
    pod = project.start()
    before = pod.children()
    (project.folder / "later").write_bytes(b'{"exited":INNOCENT,"status":-9}\n')
    (project.folder / "later").rename(project.folder / "now")
    os.kill(next(iter(before - {zygote(pod)})), signal.SIGKILL)
    eventually(lambda: pod.says("killed by SIGKILL") and len(pod.children()) == 5)
    assert zygote(pod) in before
    assert alive(innocent)
    assert pod.stop() == 0


def test_modules_that_write_to_the_masters_socket_are_refused(project: Project, innocent: int) -> None:
    more = "\nfor fd in sockets_of(os.getppid()):\n    write(fd, b'[]\\n')\n"
    (project.folder / "tasks.py").write_text(TASKS + HOSTILE + more)
    ended = project.run()
    assert ended.returncode == 3
    assert "the importing process broke the protocol: no JSON object: '[]'" in ended.stderr
