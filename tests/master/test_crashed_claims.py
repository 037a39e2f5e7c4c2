"""The database crashes while jobs of a key run: what it forgets must not let more of them run than the key's limit."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.common import CrashingServer
from forge import Forge
from forge.storage import open_storage

from .conftest import Project, eventually, making

pytestmark = pytest.mark.impl_free

CRASHES = 10
# A job holds a lock on a file of its own while it runs, and counts the locks that are held: of all jobs of its key.
TASKS = '''
import fcntl, os, time
from forge import Forge

app = Forge()
LEDGER = os.environ["LEDGER"]
HELD = LEDGER + ".held"
os.makedirs(HELD, exist_ok=True)


def note(*words):
    fd = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)


def held(path):
    """Whether somebody holds it."""
    with open(path, "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@app.task(concurrency="2")
def guarded(n: int) -> None:
    with open(os.path.join(HELD, f"{n}.{os.getpid()}"), "w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        note("START", n, sum(held(os.path.join(HELD, name)) for name in os.listdir(HELD)))
        while not os.path.exists(f"{LEDGER}.go.{n}"):
            time.sleep(0.005)


@app.task
def plain(n: int) -> None:
    note("PLAIN", n)
'''
SETTINGS = "poll_interval = 0.2\nheartbeat = 0.5\nstale_after = 60\n[queues.default]\nmax_workers = 9\n"


@pytest.fixture
def server() -> Iterator[CrashingServer]:
    folder = Path(tempfile.mkdtemp(prefix="forge-pg-"))
    made = CrashingServer(folder)
    yield made
    made.close()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def project(tmp_path: Path, server: CrashingServer) -> Iterator[Project]:
    with open_storage(server.url) as storage:
        storage.migrate()
    for made in making(tmp_path, server.url):
        (made.folder / "tasks.py").write_text(TASKS)
        made.settings(SETTINGS)
        yield made


def started(project: Project, count: int) -> None:
    """So many have been."""
    eventually(lambda: len(project.events("START")) >= count)


def run_plain(project: Project, n: int) -> None:
    """A plain job through the pod. Claims are made one after the other, so those before it have been answered."""
    app = Forge(project.url)  # with a connection that has not been through the crash
    app.enqueue("tasks.plain", {"args": [n], "kwargs": {}})
    app.close()
    eventually(lambda: ["PLAIN", str(n)] in project.events("PLAIN"), within=60)


def test_a_limit_of_two_holds_through_ten_crashes_of_the_database(project: Project, server: CrashingServer) -> None:
    for n in range(CRASHES + 4):
        project.enqueue("guarded", n, concurrency="2")
    project.start()
    started(project, 2)
    for crash in range(CRASHES):
        project.ledger.with_name(f"ledger.go.{crash}").touch()
        started(project, crash + 3)  # the next one, which has just been claimed
        server.stop()
        server.start()
        run_plain(project, 2 * crash)
        run_plain(project, 2 * crash + 1)
        at_once = [int(held) for _, _, held in project.events("START")]
        assert max(at_once) == 2, at_once
    # The first two start at the same moment, and either may say so first.
    assert sorted(int(n) for _, n, _ in project.events("START")) == list(range(CRASHES + 2)), "each of them once"
