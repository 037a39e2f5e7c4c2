"""`python -m forge.cli.demo`: a real forge-master on a SQLite database of its own, and a few dozen jobs to watch.

In a terminal it shows a live table and stays up for jobs from another one; elsewhere it prints lines and ends. All that
is shown is read from the database, as any other program could. However it ends, no process and no folder is left.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from forge import Forge
from forge.cli import report
from forge.cli.demo_screen import Screen
from forge.errors import ForgeError
from forge.job import ACTIVE
from forge.worker.zygote import die_with_parent

__all__ = ["main"]

EACH = 9  # jobs of each kind
LOOK = 0.05  # seconds between looks at the database
READY_WITHIN, STOPPED_WITHIN = 60.0, 15.0
SETTINGS = """\
database = "sqlite:///forge.db"
modules = ["forge.cli.demo_tasks"]
shutdown_timeout = 10

[queues.default]
max_workers = 4

[queues.webhooks]
max_workers = 2
throttle = "hint"
"""


def main() -> int:
    """Run the demo; Ctrl-C is the way to end it in a terminal, so it ends well."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # as Ctrl-C: leave nothing behind
        signal.signal(number, signal.default_int_handler)
    return report(_run, [])


def _run() -> int:
    with _folder() as folder, _master(folder) as master, Forge(f"sqlite:///{folder}/forge.db") as app:
        with Screen(app, live=sys.stdout.isatty()) as screen:
            _play(app, screen, master)
        if screen.live:
            _stay(screen, master, folder)
        master.stop()
    return 0


@contextmanager
def _folder() -> Iterator[Path]:
    """A project to run, gone afterwards. The last worker of a killed master may still write while it is removed."""
    folder = Path(tempfile.mkdtemp(prefix="forge-demo-"))
    try:
        (folder / "forge.toml").write_text(SETTINGS)
        yield folder
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for _ in range(50):
            shutil.rmtree(folder, ignore_errors=True)
            if not folder.exists():
                break
            time.sleep(0.1)


def _play(app: Forge, screen: Screen, master: DemoMaster) -> None:
    """From the first job to the last."""
    ids = _enqueue(app)
    screen.look(table=False)  # how they were before anything happened
    for line in master.until_ready():
        print(line, flush=True)
    print(f"{len(ids)} jobs enqueued on {app.storage.url}\n", flush=True)
    started = time.monotonic()
    while True:
        active = any(job.status in ACTIVE for job in app.storage.get(ids).values())
        screen.look()
        if not active:
            break
        master.check()
        time.sleep(LOOK)
    screen.summary(time.monotonic() - started)


def _enqueue(app: Forge) -> list[UUID]:
    """The jobs, under ids that are the same in every run, and so are their failures."""
    payloads: list[tuple[str, dict[str, Any]]] = []
    for n in range(EACH):
        payloads += [
            ("send_email", {"to": f"user{n}@example.org", "subject": "Hello", "body": f"Mail number {n}"}),
            ("resize_image", {"image": f"photo-{n}.jpg", "width": 640}),
            ("summarize_text", {"text": f"Chapter {n}"}),
            ("webhook_delivery", {"url": f"https://example.org/hook/{n}"}),
        ]
    payloads.append(("send_email", {"to": "nobody@example.org", "never_works": True}))
    payloads.append(("summarize_text", {"text": "Press release", "embargoed": True}))
    payloads.append(("webhook_delivery", {"url": "https://example.org/busy", "busy": True}))
    payloads.append(("resize_image", {"image": "huge.tiff", "out_of_memory": True}))
    ids = [UUID(int=0x018F3A7B_5C00_7000_8000_000000000000 + n) for n in range(1, len(payloads) + 1)]
    queues = {"webhook_delivery": "webhooks"}
    jobs = [
        app.job(kind, payload, id=id, queue=queues.get(kind, "default"), max_attempts=3)
        for id, (kind, payload) in zip(ids, payloads, strict=True)
    ]
    return [handle.id for handle in app.enqueue_many(jobs)]


def _stay(screen: Screen, master: DemoMaster, folder: Path) -> None:
    """Until Ctrl-C, or the master's own end."""
    try:
        print("\nIt stays up and runs what comes. In another terminal:")
        print(f"  export FORGE_CONFIG={folder}/forge.toml")
        print('  forge enqueue send_email --payload \'{"to": "you@example.org"}\'')
        print("  forge jobs --status dead\n  forge top\nCtrl-C ends it.", flush=True)
        while True:
            master.check()
            screen.look(table=False)
            time.sleep(4 * LOOK)
    except KeyboardInterrupt:
        print()


class DemoMaster:
    """The forge-master, in a session of its own: the terminal's Ctrl-C is this process's to pass on."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "master.log"
        parent = os.getpid()
        env = {k: v for k, v in os.environ.items() if not k.startswith(("FORGE_", "DATABASE_URL")) or k == "FORGE_IMPL"}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "forge.cli.master", "-c", "forge.toml"],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent),  # noqa: PLW1509 (no thread here could hold a lock)
            )
        self._told = 0  # lines that were shown

    def until_ready(self) -> Iterator[str]:
        """Its lines as it starts."""
        end = time.monotonic() + READY_WITHIN
        ready = False
        while not ready:
            self.check()
            if time.monotonic() > end:
                raise ForgeError(f"forge-master was not ready within {READY_WITHIN:.0f} s")
            for line in self._news():
                ready = ready or "ready in" in line
                yield line
            time.sleep(LOOK)

    def check(self) -> None:
        """Show its last lines, and end with an error, if it has ended by itself."""
        if self._process.poll() is not None:
            lines = self._log.read_text("utf-8", "replace").splitlines()[-15:]
            sys.stderr.write("".join(f"{line}\n" for line in lines))
            raise ForgeError(
                f"forge-master ended by itself ({_how(self._process.returncode)}); its last lines are above"
            )

    def stop(self) -> None:
        """Drain it as its own Ctrl-C would, and show what it says."""
        self._news()
        self._process.send_signal(signal.SIGINT)
        end = time.monotonic() + STOPPED_WITHIN
        while self._process.poll() is None and time.monotonic() < end:
            self._show()
            time.sleep(LOOK)
        self._show()

    def _show(self) -> None:
        for line in self._news():
            print(line, flush=True)

    def _news(self) -> list[str]:
        """Whole lines that were not told before."""
        lines = self._log.read_text("utf-8", "replace").splitlines(keepends=True)
        news = [line.rstrip("\n") for line in lines[self._told :] if line.endswith("\n")]
        self._told += len(news)
        return news

    def kill(self) -> None:
        """What is left of it. The kernel kills what it started."""
        self._process.kill()
        self._process.wait()


@contextmanager
def _master(folder: Path) -> Iterator[DemoMaster]:
    master = DemoMaster(folder)
    try:
        yield master
    except KeyboardInterrupt:
        print()
        master.stop()
        raise
    finally:
        master.kill()


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


if __name__ == "__main__":
    sys.exit(main())
