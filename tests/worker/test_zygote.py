"""The zygote itself, started as the master does: what it says of the modules, and which workers it forks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from forge.fence import Fence
from forge.job import Claim
from forge.protocol import FrameSplitter
from tests.worker.conftest import Driven, job_line, order_line
from tests.worker.test_inline import claim

pytestmark = pytest.mark.impl_free

TASKS = """
from forge import Forge
app = Forge()

@app.task
def add(a, b):
    return a + b

@app.task(name="noop_echo", backoff="fixed")
def mine():
    return "mine"
"""


class Zygote:
    def __init__(self, folder: Path) -> None:
        self.control, theirs = socket.socketpair()
        self.fence = Fence()
        fds = [theirs.fileno(), self.fence.fd]
        words = [str(fds[0]), str(os.getpid()), str(folder / "forge.toml"), str(fds[1])]
        self.process = subprocess.Popen([sys.executable, "-m", "forge.worker.zygote", *words], pass_fds=fds, cwd=folder)
        theirs.close()
        self._lines, self._came = FrameSplitter(), list[dict[str, Any]]()

    def next(self) -> dict[str, Any]:
        self.control.settimeout(30)
        while not self._came:
            self._came += [orjson.loads(line) for line in self._lines.feed(self.control.recv(1 << 16))]
        return self._came.pop(0)

    def fork(self, label: str, *, alone: bool = False) -> Driven:
        ours, theirs = socket.socketpair()
        line = order_line("fork", label=label, serial=1, alone=alone, output=False)
        socket.send_fds(self.control, [line], [theirs.fileno()])
        theirs.close()
        said = self.next()
        assert said["forked"] == label
        return Driven(label, ours, said["pid"])


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Zygote] = []

    def starting(modules: dict[str, str], config: str = "") -> Zygote:
        for name, source in modules.items():
            (tmp_path / f"{name}.py").write_text(source)
        listed = ", ".join(f'"{name}"' for name in modules)
        (tmp_path / "forge.toml").write_text(
            f'database = "sqlite:///{tmp_path}/forge.db"\nmodules = [{listed}]\n{config}\n'
        )
        started.append(Zygote(tmp_path))
        return started[-1]

    yield starting
    for zygote in started:
        zygote.control.close()
        zygote.process.wait(30)


def send(worker: Driven, found: Claim) -> dict[str, Any]:
    worker.channel.sendall(job_line(found))
    return worker.reply(found.id.hex)


def test_it_says_which_kinds_it_knows_and_which_of_them_are_built_in(start: Any) -> None:
    ready = start({"tasks": TASKS}).next()
    assert ready["unsafe"] == []
    kinds = ready["kinds"]
    assert {kind for kind, about in kinds.items() if not about.get("builtin")} == {"tasks.add", "noop_echo"}
    assert kinds["noop_echo"]["curve"] == "fixed"
    assert kinds["send_email"]["builtin"] is True


def test_it_forks_workers_with_the_settings_of_their_queue(start: Any, tmp_path: Path) -> None:
    config = f"""
unknown_kind_ttl = 77
[logging]
format = "json"
file = "{tmp_path}/forge.log"
[queues.mail]
max_jobs = 1
[queues.io]
worker = "async"
concurrency = 40
"""
    zygote = start({"tasks": TASKS}, config)
    zygote.next()
    mail, io, other = zygote.fork("mail/3"), zygote.fork("io/0"), zygote.fork("x/0")
    alone = zygote.fork("io/alone-0", alone=True)
    assert [w.line(hello=w.pid)["capacity"] for w in (mail, io, other, alone)] == [1, 40, 1, 1]
    assert send(mail, claim("tasks.add", {"args": [2, 3], "kwargs": {}}))["result"] == 5
    assert mail.line(say="leaving")["why"] == "1 job"
    assert send(io, claim("strange"))["give_up_after"] == 77
    assert send(other, claim("noop_echo"))["result"] == "mine"
    for worker in (mail, io, other, alone):
        worker.order("drain")
    assert {zygote.next()["status"] for _ in range(4)} == {0}
    for worker in (mail, io, other, alone):
        worker.channel.close()


def test_a_worker_whose_start_hook_fails_ends_with_a_code_of_its_own(start: Any, tmp_path: Path) -> None:
    source = TASKS + "\n@app.on_worker_start\ndef connect():\n    raise ConnectionError('no route')\n"
    zygote = start({"tasks": source}, f'[logging]\nfile = "{tmp_path}/forge.log"\n')
    zygote.next()
    worker = zygote.fork("mail/0")
    assert zygote.next() == {"exited": worker.pid, "status": 78}
    text = (tmp_path / "forge.log").read_text()
    assert "mail/0  tasks.connect failed: ConnectionError: no route" in text
    assert "Traceback" in text
    worker.channel.close()


def test_threads_and_sockets_that_a_module_leaves_behind_are_named_with_it(start: Any) -> None:
    threads = """
import threading
threading.Thread(target=threading.Event().wait, name="refresher", daemon=True).start()
"""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        sockets = f"import socket\nkept = socket.create_connection(('127.0.0.1', {port}))\nfd = kept.fileno()\n"
        ready = start({"tasks": TASKS, "refresh": threads, "client": sockets}).next()
    first, second = ready["unsafe"]
    assert first == "refresh: left the thread refresher running"
    assert second.startswith(f"client: left a socket open to 127.0.0.1:{port} (fd ")


def test_an_app_that_is_only_made_at_import_opens_nothing(start: Any) -> None:
    assert (
        start({"one": TASKS, "two": "from forge import Forge\nother = Forge('postgresql:///nowhere')"}).next()["unsafe"]
        == []
    )
