"""A project on disk and real `forge-master` processes running it, on both databases."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from forge import Forge

TASKS = '''
import os, signal, time
from forge import Dead, Forge, Snooze

app = Forge()
LEDGER = os.environ["LEDGER"]


def note(*words):
    """One write per event, so that events of many processes never mix."""
    fd = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task
def slow(n: int, seconds: float) -> int:
    note("START", n, os.getpid())
    time.sleep(seconds)
    note("END", n, os.getpid())
    return n


@app.task
def die(how: str) -> None:
    note("START", how, os.getpid())
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "segfault":
        import ctypes
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(7)


@app.task
def die_once(n: int) -> str:
    note("START", n, os.getpid())
    if sum(line.startswith(f"START {n} ") for line in open(LEDGER)) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return "survived"


@app.task(timeout=1, max_attempts=1)
def hang() -> None:
    note("START", "hang", os.getpid())
    time.sleep(600)


@app.task(max_attempts=1)
def patient() -> None:
    note("START", "patient", os.getpid())
    time.sleep(600)


@app.task(max_attempts=2, backoff=lambda n: 0.05)
def fail(text: str) -> None:
    raise ValueError(text)


@app.task
def hopeless() -> None:
    raise Dead("never")


@app.task
async def later(n: int) -> int:
    return n


@app.handler("raw.kind")
def raw(ctx, payload):
    return {"attempt": ctx.attempt, "payload": payload}


@app.task
def wait_for(name: str) -> str:
    note("START", name, os.getpid())
    while not os.path.exists(os.path.join(os.path.dirname(LEDGER), name)):
        time.sleep(0.01)
    note("END", name, os.getpid())
    return "went"


@app.task
def orphan() -> None:
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    note("GRANDCHILD", pid)
    os._exit(7)


@app.task
def grandchild() -> None:
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
    note("GRANDCHILD", pid)
    while True:  # whoever asks
        try:
            time.sleep(600)
        except BaseException:
            pass
'''


MASTER = [str(Path(sys.executable).parent / "forge-master"), "-c", "forge.toml"]


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def eventually(fact: Callable[[], object], within: float = 30.0) -> None:
    """Wait until it holds; the time is a bound, not a measure."""
    end = time.monotonic() + within
    while not fact():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


class Pod:
    """One `forge-master` and what it says."""

    def __init__(self, folder: Path, env: dict[str, str], *words: str) -> None:
        self.process = subprocess.Popen(
            [*MASTER, *words],
            cwd=folder,
            env=env,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip())

    def says(self, words: str) -> bool:
        return any(words in line for line in self.lines)

    def ready(self) -> Pod:
        eventually(lambda: self.says("ready in") or self.process.poll() is not None)
        assert self.process.poll() is None, self.lines
        return self

    def children(self) -> set[int]:
        """The zygote and the workers: everything below the master."""
        found, todo = set(), [self.process.pid]
        while todo:
            pid = todo.pop()
            try:
                below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            except FileNotFoundError:
                continue
            found |= {int(child) for child in below}
            todo += [int(child) for child in below]
        return found

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        code = self.process.wait(60)
        self._reader.join(10)
        return code


class Project:
    """A folder with forge.toml and tasks.py, its database, and its ledger."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url, self.ledger = folder, url, folder / "ledger"
        self.ledger.touch()
        (folder / "tasks.py").write_text(TASKS)
        self.configure(4)
        self.env = {**os.environ, "LEDGER": str(self.ledger), "FORGE_DATABASE_URL": url}
        self.pods: list[Pod] = []
        self.app = Forge(url)

    def configure(self, workers: int) -> None:
        self.settings(f"[queues.default]\nmax_workers = {workers}\n")

    def settings(self, text: str) -> None:
        """forge.toml, with these below what every project here has."""
        (self.folder / "forge.toml").write_text(f'modules = ["tasks"]\ncancel_grace = 0.2\n{text}')

    def launch(self, *words: str) -> Pod:
        """One that is not waited for."""
        pod = Pod(self.folder, self.env, *words)
        self.pods.append(pod)
        return pod

    def start(self, *words: str) -> Pod:
        return self.launch(*words).ready()

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One that must end by itself."""
        return subprocess.run(
            [*MASTER, *words],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def events(self, word: str) -> list[list[str]]:
        """The ledger's lines that start with the word."""
        return [line.split() for line in self.ledger.read_text().splitlines() if line.startswith(word + " ")]

    def freeze(self, pod: Pod) -> None:
        """Stop a master as SIGSTOP does, but in no transaction of SQLite's: whoever is stopped in one keeps the file
        locked, which no fencing helps against."""
        while True:
            pod.process.send_signal(signal.SIGSTOP)
            eventually(lambda: Path(f"/proc/{pod.process.pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "T")
            if not self.url.startswith("sqlite") or not self._locked():
                return
            pod.process.send_signal(signal.SIGCONT)
            time.sleep(0.01)

    def _locked(self) -> bool:
        """Whether somebody writes to the file of SQLite's now."""
        with closing(sqlite3.connect(self.folder / "forge.db", timeout=0, isolation_level=None)) as conn:
            try:
                conn.execute("begin immediate")
            except sqlite3.OperationalError:
                return True
            conn.execute("rollback")
            return False

    def enqueue(self, task: str, *args: object, **options: object) -> object:
        payload = {"args": list(args), "kwargs": {}}
        return self.app.enqueue(f"tasks.{task}", payload, keep_result=True, **options)  # type: ignore[arg-type]


def making(folder: Path, url: str) -> Iterator[Project]:
    """A project, cleaned up afterwards: what fixtures are made of."""
    made = Project(folder, url)
    yield made
    made.app.close()
    for pod in made.pods:
        if pod.process.poll() is None:
            pod.process.kill()
        pod.process.wait()
        if pod.process.stderr is not None:
            pod._reader.join(10)
            pod.process.stderr.close()


@pytest.fixture
def project(tmp_path: Path, url: str) -> Iterator[Project]:
    """On each database in turn."""
    yield from making(tmp_path, url)


@pytest.fixture
def project_on_postgres(tmp_path: Path, pg_url: str) -> Iterator[Project]:
    """Where the other one has no such thing."""
    yield from making(tmp_path, pg_url)
