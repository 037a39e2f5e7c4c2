"""What a module has open when it is imported, as its workers see it."""

from __future__ import annotations

import os
import socket
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.worker.test_inline import claim
from tests.worker.test_zygote import TASKS, send, start

__all__ = ["start"]  # a fixture

pytestmark = pytest.mark.impl_free

OPEN = """
import asyncio, os, socket
kept = socket.create_connection(("127.0.0.1", PORT))
to_statsd = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
to_statsd.connect(("127.0.0.1", PORT))
server = socket.create_server(("127.0.0.1", 0))
loop = asyncio.new_event_loop()

@app.task(name="read")
def read():
    return kept.recv(100).decode()

@app.task(name="write")
def write():
    kept.sendall(b"from a worker")

@app.task(name="others")
def others():
    to_statsd.send(b"n:1|c")
    socket.create_connection(server.getsockname()).send(b"x")
    return server.accept()[0].recv(1).decode() + loop.run_until_complete(asyncio.to_thread(str, 1))
"""


@pytest.fixture
def peer() -> Any:
    """A server, and in `statsd` what takes datagrams at the same port."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as statsd,
    ):
        statsd.bind(server.getsockname())
        statsd.settimeout(30)
        yield server, statsd


def opened(start: Any, peer: Any, more: str = "") -> tuple[Any, socket.socket, list[str]]:
    """A zygote whose module has connected, our end of that connection, and what it says of it."""
    server, _ = peer
    source = TASKS + OPEN.replace("PORT", str(server.getsockname()[1])) + more
    zygote = start({"tasks": source})
    connection, _ = server.accept()
    return zygote, connection, zygote.next()["unsafe"]


def test_workers_are_cut_off_from_a_connection_made_at_import(start: Any, peer: Any) -> None:
    zygote, connection, _ = opened(start, peer)
    one, two = zygote.fork("mail/0"), zygote.fork("mail/1")
    with connection:
        connection.sendall(b"an answer for whoever asked first")
        for worker in (one, two):
            assert send(worker, claim("read"))["result"] == "", "the other end has closed, as far as it can see"
            assert "BrokenPipeError" in send(worker, claim("write"))["message"]
        connection.setblocking(False)
        with pytest.raises(BlockingIOError):
            connection.recv(1)
        for worker in (one, two):
            worker.order("drain")
        assert {zygote.next()["status"] for _ in range(2)} == {0}
        with pytest.raises(BlockingIOError):
            connection.recv(1)  # nobody has closed it either
    for worker in (one, two):
        worker.channel.close()


def test_datagrams_listeners_and_event_loops_stay_as_they_are(start: Any, peer: Any) -> None:
    zygote, connection, _ = opened(start, peer)
    worker = zygote.fork("mail/0")
    assert send(worker, claim("others"))["result"] == "x1"
    assert peer[1].recv(100) == b"n:1|c"
    connection.close()
    worker.channel.close()


PAIRS = """
import selectors, subprocess
one, other = socket.socketpair()
other.setblocking(False)
watched = selectors.DefaultSelector()
watched.register(other, selectors.EVENT_READ)
ours, theirs = socket.socketpair()
helper = subprocess.Popen(["cat"], stdin=theirs, stdout=theirs)
theirs.close()

@app.task(name="send")
def send():
    return one.send(b"x")

@app.task(name="look")
def look():
    return len(watched.select(0))

@app.task(name="receive")
def receive():
    return other.recv(10).decode()

@app.task(name="of the helper")
def of_the_helper():
    return ours.recv(10).decode()
"""


def test_each_worker_has_pairs_of_its_own_and_sees_only_these(start: Any, peer: Any) -> None:
    zygote, connection, _ = opened(start, peer, PAIRS)
    one, two = zygote.fork("mail/0"), zygote.fork("mail/1")
    assert send(one, claim("send"))["result"] == 1
    assert send(two, claim("look"))["result"] == 0, "nothing came, or what wakes an event loop would wake another's"
    assert "BlockingIOError" in send(two, claim("receive"))["message"]
    assert send(one, claim("look"))["result"] == 1
    assert send(one, claim("receive"))["result"] == "x"
    for each in (connection, one.channel, two.channel):
        each.close()


def test_workers_are_cut_off_from_a_pair_whose_other_end_is_a_helpers(start: Any, peer: Any) -> None:
    zygote, connection, unsafe = opened(start, peer, PAIRS)
    assert sum("cut off from" in sentence for sentence in unsafe) == 2, "the connection, and the helper's"
    worker = zygote.fork("mail/0")
    assert send(worker, claim("of the helper"))["result"] == ""
    connection.close()
    worker.channel.close()


LATE = """
import threading

def connect():
    global kept
    open(os.path.join(os.path.dirname(__file__), "begin")).close()
    kept = socket.create_connection(kept.getpeername())
    kept.sendall(b"connected")

threading.Thread(target=connect, daemon=True).start()
"""


def test_a_connection_that_a_thread_makes_after_the_import_is_cut_too(start: Any, peer: Any, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "begin")
    zygote, connection, _ = opened(start, peer, LATE)
    (tmp_path / "begin").write_text("")
    late, _ = peer[0].accept()
    assert late.recv(100) == b"connected"
    worker = zygote.fork("mail/0")
    late.sendall(b"an answer")
    assert send(worker, claim("read"))["result"] == ""
    for each in (connection, late, worker.channel):
        each.close()


def test_a_database_file_that_is_left_open_is_named(start: Any, tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "own.db").executescript("create table t (n)")
    source = f"import sqlite3\nconn = sqlite3.connect('{tmp_path}/own.db')\nconn.execute('select * from t')\n"
    (said,) = start({"tasks": TASKS + source}).next()["unsafe"]
    assert said.startswith("tasks: left the SQLite database own.db open (fd ")


def test_it_is_said_what_is_shared_and_what_is_cut(start: Any, peer: Any) -> None:
    _, connection, unsafe = opened(start, peer)
    port = peer[0].getsockname()[1]
    said = "\n".join(unsafe)
    assert f"tasks: left a socket open to 127.0.0.1:{port} (fd " in said
    assert "which workers are cut off from; connect in a function of @app.on_worker_start" in said
    assert "tasks: left a socket listening (fd " in said
    assert len(unsafe) == 2, "none for datagrams and for an event loop's pair, of which each has its own"
    connection.close()
