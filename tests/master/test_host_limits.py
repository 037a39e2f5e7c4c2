"""Too few open files, processes or threads: one line that says so, and a pod that goes on."""

from __future__ import annotations

import errno
import os
import resource
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from forge import config, host_limits
from forge.errors import ConfigError
from forge.master.programs import process_table
from tests.master import conftest
from tests.master.conftest import Pod, Project, eventually
from tests.master.rig import Rig

pytestmark = pytest.mark.impl_free

TASKS = """
import errno, os, resource, threading
from forge import Forge

app = Forge()
FOLDER = os.path.dirname(os.environ["LEDGER"])
fork, start = os.fork, threading.Thread.start


def full(name):
    return os.path.exists(os.path.join(FOLDER, name))


def refusing_fork():
    if full("no-processes"):
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return fork()


def refusing_start(self):
    if full("no-threads"):
        raise RuntimeError("can't start new thread")
    start(self)


os.fork, threading.Thread.start = refusing_fork, refusing_start


@app.task
def files() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have masters start as after this command of a shell."""

    def limit(command: str) -> None:
        monkeypatch.setattr(conftest, "MASTER", ["sh", "-c", f'{command}; exec "$@"', "sh", *conftest.MASTER])

    return limit


@pytest.fixture
def pod(project: Project) -> Pod:
    (project.folder / "tasks.py").write_text(TASKS)
    project.configure(2)
    return project.start()


def children(pid: int) -> list[int]:
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # it has ended
            found += map(int, (thread / "children").read_text().split())
    return found


def zygote_of(pod: Pod) -> int:
    (zygote,) = children(pod.process.pid)
    return zygote


def workers(pod: Pod) -> list[int]:
    return children(zygote_of(pod))


def lowest_free(pid: int) -> int:
    """The descriptor that it would get next."""
    taken = {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}
    return next(n for n in range(1024) if n not in taken)


def set_files(pid: int, soft: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]))


def said(pod: Pod, words: str) -> str:
    eventually(lambda: pod.says(words))
    return next(line for line in pod.lines if words in line)


def result_of(project: Project, task: str) -> object:
    handle: Any = project.enqueue(task)
    return handle.result(timeout=60)


# -- at the start --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", [(), ("--check",)])
def test_too_few_open_files_for_the_settings_are_one_line(
    project: Project, limited: Callable[[str], None], words: tuple[str, ...]
) -> None:
    project.settings("[queues.default]\nmax_workers = 30\nmin_workers = 30\n")
    limited("ulimit -n 64")
    ran = project.run(*words)
    assert ran.returncode == 3
    (line,) = ran.stderr.splitlines()[1:]
    assert line.startswith("error: the limit of open files is 64, and a pod of these settings needs 138: raise it")


def test_the_master_takes_more_open_files_if_it_may_and_its_workers_do_not(
    project: Project, limited: Callable[[str], None]
) -> None:
    (project.folder / "tasks.py").write_text(TASKS)
    project.configure(30)
    limited("ulimit -Sn 64")
    pod = project.start()
    assert resource.prlimit(pod.process.pid, resource.RLIMIT_NOFILE)[0] == 138
    assert result_of(project, "files") == 64
    assert pod.stop() == 0


def test_no_room_for_a_thread_is_one_line(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `ulimit -v`, of which nobody can tell how little is too little for a thread and enough for the rest."""
    code = """
import sys, threading
from forge.cli.master import main

def refuse(self):
    raise RuntimeError("can't start new thread")

threading.Thread.start = refuse
sys.exit(main(sys.argv[1:]))
"""
    monkeypatch.setattr(conftest, "MASTER", [sys.executable, "-c", code, *conftest.MASTER[1:]])
    ran = project.run()
    assert ran.returncode == 1
    assert ran.stderr.splitlines()[-1].startswith("error: no room for another thread")
    assert "Traceback" not in ran.stderr


# -- while it runs -------------------------------------------------------------------------------------------------


def test_a_master_without_open_files_says_so_and_goes_on(project: Project, pod: Pod) -> None:
    master = pod.process.pid
    set_files(master, 24)
    os.kill(workers(pod)[0], signal.SIGKILL)
    line = said(pod, "cannot be started: too many open files")
    assert "the limit is 24 (ulimit -n), and a pod of these settings needs 54; it is tried again" in line
    assert result_of(project, "files")  # the other worker's
    set_files(master, 1024)
    eventually(lambda: len(workers(pod)) == 2)
    assert pod.stop() == 0


def test_a_reload_that_there_is_no_room_for_changes_nothing(project: Project, pod: Pod) -> None:
    one_is_free = lowest_free(pod.process.pid) + 1
    # The settings can be read with that, and no more: not even those, if another thread has just opened something. The
    # hard limit too, or the master would take what it needs.
    resource.prlimit(pod.process.pid, resource.RLIMIT_NOFILE, (one_is_free, one_is_free))
    pod.process.send_signal(signal.SIGHUP)
    line = said(pod, "not reloaded")
    assert "the zygote cannot be started: too many open files: the limit is " in line or "Too many open files" in line
    assert line.endswith("; going on as before")
    assert result_of(project, "files")
    assert pod.stop() == 0


def test_a_zygote_without_open_files_says_so_and_is_asked_again(project: Project, pod: Pod) -> None:
    zygote = zygote_of(pod)
    before = resource.prlimit(zygote, resource.RLIMIT_NOFILE)[0]
    limit = lowest_free(zygote)
    set_files(zygote, limit)
    os.kill(workers(pod)[0], signal.SIGKILL)
    said(pod, f"could not be forked: too many open files: the limit is {limit} (ulimit -n)")
    set_files(zygote, before)
    eventually(lambda: len(workers(pod)) == 2)
    assert result_of(project, "files") == before
    assert pod.stop() == 0


def test_no_room_for_a_process_or_a_thread_is_said_and_tried_again(project: Project, pod: Pod) -> None:
    for what, words in (
        ("no-processes", "could not be forked: no room for another process"),
        ("no-threads", "no room for another thread"),
    ):
        (project.folder / what).touch()
        eventually(lambda: len(workers(pod)) == 2)
        os.kill(workers(pod)[0], signal.SIGKILL)
        said(pod, words)
        (project.folder / what).unlink()
        eventually(lambda: len(workers(pod)) == 2)
    assert not pod.says("Traceback")
    assert result_of(project, "files")
    assert pod.stop() == 0


def test_a_program_that_there_are_no_pipes_for_fails_its_job_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(tmp_path, '[commands.hello]\nargv = ["echo", "hello"]\n')
    try:

        def none(count: int) -> list[tuple[int, int]]:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        with monkeypatch.context() as patch:
            patch.setattr(process_table, "pipes", none)
            ending: Any = rig.run("cmd_exec", {"command": "hello"})
        assert "forge: cannot run it: too many open files: the limit is" in ending.outcome.message
        done: Any = rig.run("cmd_exec", {"command": "hello"})
        assert done.result == b'{"stdout":"hello\\n"}'
    finally:
        rig.close()


# -- counting ------------------------------------------------------------------------------------------------------


def settings(tmp_path: Path, text: str, url: str) -> config.Config:
    (tmp_path / "forge.toml").write_text(text)
    return config.load(tmp_path / "forge.toml", url)


def as_user(monkeypatch: pytest.MonkeyPatch, processes: int) -> None:
    """This process as one that has such a limit, which binds nobody who is root."""
    known = resource.getrlimit
    monkeypatch.setattr(
        resource, "getrlimit", lambda of: (processes, processes) if of == resource.RLIMIT_NPROC else known(of)
    )
    monkeypatch.setattr(os, "getuid", lambda: 1000)


def test_too_few_processes_for_the_settings_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 8)
    found = settings(tmp_path, "[queues.default]\nmax_workers = 4\n", "sqlite:///x.db")
    with pytest.raises(ConfigError, match=r"^the limit of processes and threads is 8, .* needs 26: raise it"):
        list(host_limits.check_room(found))


def test_threads_pools_and_commands_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_user(monkeypatch, 100_000)
    text = """
[queues.mail]
max_workers = 3
worker = "threads"
concurrency = 10
[pools.render]
kind = "render"
argv = ["node"]
size = 5
[commands.hello]
argv = ["echo"]
"""
    files, processes_ = list(host_limits.limits(settings(tmp_path, text, "sqlite:///x.db")))[:2]
    assert files.all == files.least == 48 + 3 * (3 + 3) + 5 * 3
    assert processes_.all == processes_.least == 18 + 3 * (2 + 10 + 2) + 5 * 2


def test_a_pod_that_shares_its_queues_with_others_is_only_warned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_user(monkeypatch, 50)
    text = "[queues.default]\nmax_workers = 100\n"
    (warning,) = host_limits.check_room(settings(tmp_path, text, "postgresql:///x"))
    assert "the limit of processes and threads is 50, and a pod of these settings needs 218" in warning
    with pytest.raises(ConfigError, match="is 50"):
        list(host_limits.check_room(settings(tmp_path, text, "sqlite:///x.db")))


def test_pipes_leave_some_descriptors_for_others_and_leak_none(monkeypatch: pytest.MonkeyPatch) -> None:
    known = len(os.listdir("/proc/self/fd"))
    made = host_limits.pipes(2)
    highest = made[-1][1]
    for pair in made:
        for fd in pair:
            os.close(fd)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (highest + host_limits.RESERVED, 4096))
    with pytest.raises(OSError, match="Too many open files"):
        host_limits.pipes(2)
    monkeypatch.undo()
    assert len(os.listdir("/proc/self/fd")) == known


def test_what_has_nothing_to_do_with_limits_is_not_explained() -> None:
    assert host_limits.explain(OSError(errno.ENOENT, "")) is None
    assert host_limits.explain(BlockingIOError(errno.EAGAIN, "")) is None
    assert host_limits.explain(RuntimeError("x")) is None
    wrapped = RuntimeError("cannot connect")
    wrapped.__cause__ = OSError(errno.EMFILE, "")
    assert "too many open files" in (host_limits.explain(wrapped) or "")
