"""The samples of logs and screens in README.md and docs/*.md: `make samples`, or python -m tests.samples [NAME ...]

A block under the comment `<!-- sample: NAME -->` shows what SCENES[NAME] has seen when it last ran the real thing. This
program runs all of them in empty folders and writes the blocks; tests/test_samples.py runs them again and compares.
What differs from run to run is always the same in a sample: times of day, pids, ids, folders, how long things took.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.common import postgres

from .docs_runner import blocks

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SAMPLE = re.compile(r"(<!-- sample: ([\w-]+) -->\n```[a-z]+(?: no-run)?\n)(.*?)(```\n)", re.DOTALL)
BIN = Path(sys.executable).parent
TOML = 'modules = ["tasks"]\n\n[queues.default]\nmax_workers = 4\n'
TASKS = """
import os, pathlib, socket, time
from forge import Forge

app = Forge()

@app.task
def add(a: int, b: int) -> int:
    return a + b

@app.task
def flaky(seconds: float) -> None:
    pathlib.Path("started").open("a").write(f"{os.getpid()}\\n")
    time.sleep(seconds)
"""
SAME = (  # what differs from run to run, and how a sample has it
    (re.compile(r"\bpid \d+"), "pid 4711"),
    (re.compile(r"default/\d+ \(\d+\)"), "default/0 (4713)"),
    (re.compile(r"ready in [\d.]+ m?s"), "ready in 0.21 s"),
    (re.compile(r"started in [\d.]+ m?s"), "started in 3 ms"),
    (re.compile(r"confirmed for \d+ s: "), "confirmed for 48 s: "),  # as with the default of `stale_after`
    (re.compile(r"confirmed for \d+ s, "), "confirmed for 54 s, "),
    (
        re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}"),
        "0198c0de-0000-7000-8000-000000000007",
    ),
    (re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}"), "2030-01-01T12:00:00.000"),
)


def plain(text: str, folder: Path) -> str:
    """Without what differs from run to run."""
    text = text.replace(str(folder), "/home/me/hello")
    for pattern, words in SAME:
        text = pattern.sub(words, text)
    return text


def eventually(fact: Callable[[], object], what: object = "") -> None:
    """Wait until it holds; the time is a bound, not a measure."""
    end = time.monotonic() + 60
    while not fact():
        if time.monotonic() > end:
            raise AssertionError(f"it never came true: {what}")
        time.sleep(0.01)


class Stage:
    """An empty folder with a project in it, and the masters that are started there."""

    def __init__(self, folder: Path, page: str) -> None:
        self.folder, self.page = folder, page
        self.env = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("FORGE_", "DATABASE_URL", "PYTEST"))
        }
        self.env["PATH"] = f"{BIN}{os.pathsep}{self.env['PATH']}"
        self.masters: list[Master] = []

    def project(self, toml: str = TOML, tasks: str = TASKS) -> None:
        """The files of a small one."""
        (self.folder / "forge.toml").write_text(toml)
        (self.folder / "tasks.py").write_text(tasks)

    def project_of_page(self) -> None:
        """The files that the page shows."""
        for block in blocks((ROOT / self.page).read_text("utf-8")):
            if block.file in ("tasks.py", "forge.toml"):
                (self.folder / block.file).write_text(block.text)

    def run(self, *words: str, fails: bool = False) -> str:
        """What a command prints."""
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.env,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert bool(done.returncode) is fails, done.stdout
        return done.stdout

    def master(self, *words: str) -> Master:
        """One that is ready."""
        made = Master(self, *(words or ("-c", "forge.toml")))
        self.masters.append(made)
        made.until("this pod leads" if len(self.masters) == 1 else "ready in")
        return made

    def started(self) -> list[int]:
        """The workers in which `flaky` runs, or has."""
        file = self.folder / "started"
        return [int(line) for line in file.read_text().split()] if file.exists() else []

    def close(self) -> None:
        """Nothing runs any more."""
        for master in self.masters:
            master.close()


class Master:
    """One `forge-master`, what it says, and the time that the sample has for it."""

    def __init__(self, stage: Stage, *words: str) -> None:
        self._folder, self.command = stage.folder, f"$ forge-master {' '.join(words)}"
        self.clock, self.lines = "12:00:00", list[str]()
        self.process = subprocess.Popen(
            ["forge-master", *words], cwd=stage.folder, env=stage.env, stderr=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            said = re.sub(r"^\d\d:\d\d:\d\d", self.clock, line.rstrip())
            self.lines.append(plain(said, self._folder))

    def until(self, words: str, times: int = 1) -> None:
        """Wait until it has said so."""
        eventually(lambda: sum(words in line for line in self.lines) >= times, (words, self.lines))

    def at(self, clock: str) -> None:
        """What comes now happens at this time of day."""
        self.clock = clock

    def shown(self, *words: str) -> str:
        """The sample: everything so far, or the lines with one of these words."""
        lines = [line for line in self.lines if not words or any(word in line for word in words)]
        return "\n".join([self.command, *lines]) + "\n"

    def close(self) -> None:
        """End it, whatever it does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()


# -- the scenes


def start(stage: Stage) -> str:
    """A start, with the project that the page shows."""
    stage.project_of_page()
    return stage.master().shown()


def worker_killed(stage: Stage) -> str:
    """A start, and a worker that is killed with a job in hand."""
    stage.project()
    master = stage.master()
    stage.run("forge", "enqueue", "tasks.flaky", "600")
    eventually(stage.started)
    master.at("12:03:10")
    os.kill(stage.started()[0], signal.SIGKILL)
    master.until("worker started")
    return master.shown()


def protocol_broken(stage: Stage) -> str:
    """A handler that writes to its master."""
    rude = """
@app.task
def rude() -> None:
    for name in os.listdir("/proc/self/fd"):
        try:
            socket.socket(fileno=os.dup(int(name))).send(b"[]\\\\n")
        except OSError:
            pass
    time.sleep(600)
""".replace("\\\\n", "\\n")
    stage.project(tasks=TASKS + rude)
    master = stage.master()
    master.at("12:03:10")
    stage.run("forge", "enqueue", "tasks.rude")
    master.until("broke the protocol")
    return master.shown("broke the protocol")


def leader(stage: Stage) -> str:
    """A pod that leads after another one, which has gone silent, and then stops."""
    with postgres() as url:
        stage.env["DATABASE_URL"] = url
        stage.project("heartbeat = 0.1\nleader_ttl = 1\nstale_after = 4\n" + TOML)
        stage.run("forge", "db", "migrate")
        first = stage.master()
        for _ in range(4):
            stage.run("forge", "enqueue", "tasks.flaky", "600")
        eventually(lambda: len(stage.started()) == 4)
        first.process.send_signal(signal.SIGSTOP)
        second = stage.master()
        second.at("12:00:01")
        second.until("this pod leads")
        second.at("12:05:19")
        second.until("had gone silent")
        second.at("12:31:40")
        second.process.terminate()
        second.until("no longer leads")
        stage.close()
        return second.shown("leader ", "reaper ")


def fenced(stage: Stage) -> str:
    """A pod that cannot write to its database for a while."""
    import apsw

    stubborn = TASKS.replace(
        "    time.sleep(seconds)", "    while True:\n        try:\n            time.sleep(seconds)\n"
    )
    stage.project("stale_after = 5\n" + TOML, stubborn + "        except BaseException:\n            pass\n")
    master = stage.master()
    for _ in range(3):
        stage.run("forge", "enqueue", "tasks.flaky", "600")
    eventually(lambda: len(stage.started()) == 3)
    conn = apsw.Connection(str(stage.folder / "forge.db"))
    conn.set_busy_timeout(10_000)
    conn.execute("begin immediate")
    master.at("12:00:48")
    master.until("nothing more is started")
    master.at("12:00:54")
    master.until("is killed")
    master.at("12:03:10")
    conn.execute("rollback")
    conn.close()
    master.until("confirmed again")
    return master.shown("confirmed")


def reload(stage: Stage) -> str:
    """A change that is taken in, and one that is not."""
    stage.project()
    master = stage.master("--reload")
    master.until("watching")
    tasks = stage.folder / "tasks.py"
    master.at("12:00:09")
    tasks.write_text(TASKS.replace("a + b", "b + a"))
    master.until("workers replaced")
    master.at("12:00:20")
    tasks.write_text(TASKS.replace("a + b", "a +"))
    master.until("not reloaded")
    return master.shown("watching", "changed", "replaced", "not reloaded")


def top(stage: Stage) -> str:
    """A look at a pod with one job that runs and some that have."""
    stage.project()
    master = stage.master()
    for _ in range(3):
        stage.run("forge", "enqueue", "tasks.add", "1", "2")
    stage.run("forge", "enqueue", "tasks.flaky", "600")
    eventually(stage.started)
    printed = stage.run("forge", "top", "--interval", "1")
    assert master.process.poll() is None
    screen = re.sub(r"^\d\d:\d\d:\d\d", "12:00:36", plain(printed, stage.folder).strip())
    host = platform.node()
    screen = re.sub(rf"\b{re.escape(host)} +\d+", lambda found: "vm" + "4711".rjust(len(found[0]) - 2), screen)
    return f"$ forge top\n{screen}\n"


def host_limit(stage: Stage) -> str:
    """A limit of the host that is too low."""
    stage.project(TOML.replace("= 4", "= 30"))
    printed = stage.run("bash", "-c", "ulimit -n 64; exec forge-master -c forge.toml", fails=True)
    return f"{printed.splitlines()[-1]}\n"


def _printed(stage: Stage, logging: str, how: str) -> str:
    said = f"\n@app.task\ndef send() -> None:\n    {how}\n"
    head = "import logging\n"
    stage.project(f'modules = ["tasks"]\n{logging}\n[queues.mail]\nmax_workers = 1\n', head + TASKS + said)
    stage.master()
    master = stage.masters[0]
    stage.run("forge", "enqueue", "tasks.send", "--queue", "mail")
    master.until("sent")
    return "".join(f"{line}\n" for line in master.lines if "sent" in line)


def record(stage: Stage) -> str:
    """A log record of a handler, as JSON."""
    return _printed(stage, '[logging]\nformat = "json"\n', 'logging.getLogger(__name__).info("sent")')


def printed_line(stage: Stage) -> str:
    """A line that a handler has printed, as text."""
    return _printed(stage, "", 'print("sent")')


SCENES: dict[str, Callable[[Stage], str]] = {
    "start": start,
    "worker-killed": worker_killed,
    "protocol-broken": protocol_broken,
    "leader": leader,
    "fenced": fenced,
    "reload": reload,
    "top": top,
    "host-limit": host_limit,
    "record": record,
    "printed-line": printed_line,
}


class Sample(NamedTuple):
    """A block that shows what a scene has seen."""

    page: str
    name: str
    text: str


def samples() -> Iterator[Sample]:
    """Every one in the documents."""
    for page in PAGES:
        for found in SAMPLE.finditer(page.read_text("utf-8")):
            yield Sample(str(page.relative_to(ROOT)), found[2], found[3])


def seen(sample: Sample) -> str:
    """What its scene sees now."""
    folder = Path(tempfile.mkdtemp(prefix="forge-sample-"))
    stage = Stage(folder, sample.page)
    try:
        return SCENES[sample.name](stage)
    finally:
        stage.close()
        shutil.rmtree(folder, ignore_errors=True)


def shape(text: str) -> str:
    """For screens, whose figures and columns' widths differ: the words alone."""
    return re.sub(r"\s+", " ", re.sub(r"[\d.:]+", "0", text)).strip()


def main() -> None:
    """Write them."""
    for sample in samples():
        if len(sys.argv) > 1 and sample.name not in sys.argv[1:]:
            continue
        new = seen(sample)
        print(f"{sample.page}: {sample.name}\n{new}", flush=True)
        page = ROOT / sample.page

        def put(found: re.Match[str], sample: Sample = sample, new: str = new) -> str:
            return f"{found[1]}{new}{found[4]}" if found[2] == sample.name else found[0]

        page.write_text(SAMPLE.sub(put, page.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main()
