"""What modules and handlers change for the whole process does not change how forge works there."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forge.fastpath import uuid7
from forge.job import Claim
from tests.master.conftest import eventually
from tests.worker.conftest import Driven, job_line, order_line
from tests.worker.test_inline import claim
from tests.worker.test_zygote import Zygote, start  # noqa: F401 (a fixture)

IMPORTS = """
import asyncio, decimal, gc, locale, logging, os, random, resource, signal, socket, sys, tempfile, threading, time
import warnings
from pathlib import Path
"""

SETTINGS = {
    "nothing": "",
    "socket timeouts": "socket.setdefaulttimeout(0.05)",
    "non-blocking sockets": "socket.setdefaulttimeout(0)",
    "umask": "os.umask(0o777)",
    "directory": "os.chdir('/')",
    "no directory": "os.chdir(tempfile.mkdtemp()); os.rmdir(os.getcwd())",
    "arguments": "sys.argv.clear()",
    "signal mask": "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())",
    "signal handlers": """
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
    signal.signal(number, lambda *_: os._exit(9))
""",
    "ignored signals": """
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
    signal.signal(number, signal.SIG_IGN)
""",
    "no standard output": "sys.stdout = sys.__stdout__ = None",
    "closed standard output": "sys.stdout.close()",
    "closed standard error": "sys.stderr.close()",
    "environment": "os.environ.clear()",
    "seed": "random.seed(1)",
    "collector": "gc.disable()",
    "warnings": """
warnings.simplefilter("error")
threading.Thread(target=threading.Event().wait, daemon=True).start()
""",
    "loops": "asyncio.set_event_loop(None)",
    "decimals": "decimal.getcontext().prec = 1",
    "time zone": "os.environ['TZ'] = 'Asia/Tokyo'; time.tzset()",
    "priority": "os.nice(5)",
    "recursion": "sys.setrecursionlimit(150)",
    "descriptors": "resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))",
    "logging": "logging.disable(); logging.shutdown()",
}

TASKS = """
from forge import Context, Forge
app = Forge()

@app.handler("run")
def run(ctx, payload):
    exec(payload, globals())

@app.handler("def")
def plain(ctx, payload):
    return payload

@app.handler("async")
async def later(ctx, payload):
    await asyncio.sleep(0)
    return payload

@app.handler("fail")
def fail(ctx, payload):
    raise ValueError(payload)

@app.handler("pause")
def pause(ctx, payload):
    time.sleep(0.3)  # longer than the sockets' timeout above
    return os.getpid()

@app.handler("stuck")
def stuck(ctx, payload):
    Path(payload).touch()
    while True:
        time.sleep(0.01)
"""


def reply(worker: Driven, kind: str, payload: Any = None, **fields: Any) -> dict[str, Any]:
    found = job(kind, payload, **fields)
    worker.channel.sendall(job_line(found))
    return worker.reply(found.id.hex)


def job(kind: str, payload: Any = None, **fields: Any) -> Claim:
    return claim(kind, payload, id=uuid7(), **fields)


def assert_works(worker: Driven, folder: Path) -> None:
    """Its jobs run, also after a pause and many at once, and one that is stuck can be cancelled."""
    for kind in ("pause", "def", "async"):
        assert reply(worker, kind, "x")["status"] == "ok"
    many = [job("def", n, keep_result=False) for n in range(50)]
    worker.channel.sendall(b"".join(map(job_line, many)))
    assert {worker.reply(each.id.hex)["status"] for each in many} == {"ok"}
    assert reply(worker, "fail", "no luck")["message"] == "ValueError: no luck"
    sign = folder / f"stuck-{worker.pid}"
    held = job("stuck", str(sign))
    worker.channel.sendall(job_line(held))
    eventually(sign.exists)
    worker.order("cancel", id=held.id.hex)
    worker.order("interrupt", id=held.id.hex)
    assert worker.reply(held.id.hex)["status"] == "cancelled"
    assert reply(worker, "def", "after")["result"] == "after"


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_made_when_a_module_is_imported(setting: str, start: Any, tmp_path: Path) -> None:  # noqa: F811
    zygote: Zygote = start({"tasks": IMPORTS + SETTINGS[setting] + "\n" + TASKS})
    assert zygote.next()["ready"]
    for number in (signal.SIGINT, signal.SIGTERM):  # the terminal's, which are the master's to interpret
        zygote.process.send_signal(number)
    for n in range(2):
        worker = zygote.fork(f"default/{n}")
        worker.line(hello=worker.pid)
        assert_works(worker, tmp_path)
        worker.order("drain")
        assert zygote.next() == {"exited": worker.pid, "status": 0}
        worker.channel.close()


@pytest.mark.parametrize("setting", SETTINGS)
def test_a_setting_made_by_a_handler(setting: str, start: Any, tmp_path: Path) -> None:  # noqa: F811
    zygote: Zygote = start({"tasks": IMPORTS + TASKS})
    assert zygote.next()["ready"]
    worker = zygote.fork("default/0")
    worker.line(hello=worker.pid)
    made = [job("run", SETTINGS[setting], keep_result=False) for _ in range(2)]
    worker.channel.sendall(b"".join(map(job_line, made)))
    assert worker.reply(made[0].id.hex)["status"] == "ok"
    worker.reply(made[1].id.hex)  # some can be made only once
    assert_works(worker, tmp_path)
    worker.order("drain")
    assert zygote.next() == {"exited": worker.pid, "status": 0}
    worker.channel.close()


def test_retries_do_not_come_in_step_after_a_handler_has_seeded(start: Any) -> None:  # noqa: F811
    zygote: Zygote = start({"tasks": IMPORTS + TASKS})
    assert zygote.next()["ready"]
    worker = zygote.fork("default/0")
    worker.line(hello=worker.pid)
    replies = [reply(worker, "run", "random.seed(1); raise ValueError", attempt=3) for _ in range(3)]
    assert len({reply["delay"] for reply in replies}) == 3
    assert len({reply(worker, "nobody knows it")["delay"] for _ in range(3)}) == 3
    worker.channel.close()


# -- numbers -------------------------------------------------------------------------------------------------------

COMMA = """
comment_char %
escape_char /
LC_NUMERIC
decimal_point "<U002C>"
thousands_sep ""
grouping -1
END LC_NUMERIC
"""


def test_a_locale_with_a_decimal_comma_does_not_change_what_a_worker_says(tmp_path: Path) -> None:
    (tmp_path / "source").write_text(COMMA)
    command = ["localedef", "-c", "--no-archive", "-i", str(tmp_path / "source"), "-f", "ANSI_X3.4-1968"]
    subprocess.run([*command, str(tmp_path / "comma")], check=False, capture_output=True)  # it warns of what is missing
    script = """
import locale, uuid
from forge import _fastpath, _fastpath_py
locale.setlocale(locale.LC_NUMERIC, "comma")
assert locale.localeconv()["decimal_point"] == ","
id = uuid.uuid4()
for seconds in (0.0, -0.0, 1.5, 0.0000005, 0.0000015, 12.3456785, 0.1):
    assert _fastpath.done_line(id, seconds) == _fastpath_py.done_line(id, seconds), seconds
"""
    env = {**os.environ, "LOCPATH": str(tmp_path)}
    found = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")


# -- where jobs go -------------------------------------------------------------------------------------------------

APPS = """
from forge import Forge
near = Forge()
far = Forge("sqlite:///far.db")

@near.handler("go")
def go(ctx, payload):
    os.chdir(payload)
    os.environ["DATABASE_URL"] = os.environ["FORGE_DATABASE_URL"] = "sqlite:///elsewhere.db"
    os.environ["FORGE_CONFIG"] = "elsewhere.toml"

@near.handler("enqueue")
def enqueue(ctx, payload):
    for app in (near, far):
        app.enqueue("letter", {})
    return [app.storage.url for app in (near, far)]
"""


@pytest.mark.parametrize("chdir", ["", "os.chdir(os.environ['ELSEWHERE'])"], ids=["in a handler", "at import"])
def test_jobs_that_a_handler_enqueues_go_where_they_always_did(
    start: Any,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    chdir: str,
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.setenv("ELSEWHERE", str(elsewhere))
    zygote: Zygote = start({"tasks": f"{IMPORTS}\n{chdir}\n{APPS}"})
    assert zygote.next()["ready"]
    worker = zygote.fork("default/0")
    worker.line(hello=worker.pid)
    assert reply(worker, "go", str(elsewhere))["status"] == "ok"
    urls = [f"sqlite:///{tmp_path}/forge.db", f"sqlite:///{tmp_path}/far.db"]
    assert reply(worker, "enqueue", {}).get("result") == urls
    assert list(elsewhere.iterdir()) == []
    worker.channel.close()


def test_a_program_does_not_have_the_umask_of_the_modules(start: Any, tmp_path: Path) -> None:  # noqa: F811
    usual = os.umask(0o022)
    os.umask(usual)
    zygote: Zygote = start({"tasks": IMPORTS + "os.umask(0o777)\n" + TASKS})
    assert zygote.next()["ready"]
    with open(os.devnull) as null, (tmp_path / "said").open("w") as said:
        line = order_line("exec", number=1, argv=["sh", "-c", "umask"], env={}, cwd=str(tmp_path))
        socket.send_fds(zygote.control, [line], [null.fileno(), said.fileno(), said.fileno()])
    assert zygote.next()["started"] == 1
    assert zygote.next()["status"] == 0
    assert int((tmp_path / "said").read_text(), 8) == usual


def test_a_program_does_not_have_the_directory_of_the_modules(start: Any, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "below").mkdir()
    zygote: Zygote = start({"tasks": IMPORTS + "os.chdir('/')\n" + TASKS})
    assert zygote.next()["ready"]
    with open(os.devnull) as null, (tmp_path / "said").open("w") as said:
        line = order_line("exec", number=1, argv=["pwd"], env={}, cwd="below")
        socket.send_fds(zygote.control, [line], [null.fileno(), said.fileno(), said.fileno()])
    assert zygote.next()["started"] == 1
    assert zygote.next()["status"] == 0
    assert (tmp_path / "said").read_text() == f"{tmp_path / 'below'}\n"


def test_what_forge_says_in_a_worker_is_not_what_a_module_disables(
    start: Any,  # noqa: F811
    tmp_path: Path,
) -> None:
    quiet = "import logging.config\nlogging.config.dictConfig({'version': 1, 'root': {'level': 'CRITICAL'}})\n"
    settings = f'[logging]\nfile = "{tmp_path}/log"\n'
    zygote: Zygote = start({"tasks": IMPORTS + quiet + TASKS}, settings)
    assert zygote.next()["ready"]
    worker = zygote.fork("default/0")
    worker.line(hello=worker.pid)
    assert reply(worker, "run", "logging.getLogger('forge.worker').error('heard')")["status"] == "ok"
    assert "default/0  heard\n" in (tmp_path / "log").read_text()
    worker.channel.close()
