"""`python -m forge.cli.demo`: a few dozen pretended jobs on a SQLite database of their own, to watch.

In a terminal it shows a live table and stays up for jobs from another one; elsewhere it prints lines and ends.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from forge import Dead, Failed, Forge, Snooze, Status, Throttled
from forge.cli import report
from forge.cli.common import duration, table
from forge.job import ACTIVE, Ending
from forge.worker.inline import Context, drain
from forge.worker.simulated import PLANS, perform

__all__ = ["main"]

SPEED = 2.5  # times as fast as the plans are written
RETRY, SNOOZE, COOL_DOWN = 0.4, 0.8, 1.0  # seconds: short, because somebody is watching
EACH = 9  # jobs of each kind
EVENTS = 8  # of the latest shown under the table


def main() -> int:
    """Run the demo; Ctrl-C is the way to end it in a terminal, so it ends well."""
    return report(_run, [])


def _run() -> int:
    with tempfile.TemporaryDirectory(prefix="forge-demo-") as folder:
        database = f"sqlite:///{Path(folder)}/forge.db"
        with Forge(database) as app:
            screen = Screen(app, live=sys.stdout.isatty())
            try:
                _play(app, screen)
                if screen.live:
                    _stay(app, screen, database)
            except KeyboardInterrupt:
                pass
            finally:
                screen.close()
    return 0


def _play(app: Forge, screen: Screen) -> None:
    started = time.monotonic()
    _define(app)
    app.storage.set_queue("webhooks", throttle="hint")
    ids = _enqueue(app)
    screen.say(f"{len(ids)} jobs enqueued on {app.storage.url}")
    while any(job.status in ACTIVE for job in app.storage.get(ids).values()):
        drain(app, on_job=screen.ended)
        time.sleep(0.05)  # until a retry, the snooze or the cool-down is due
        screen.draw()
    screen.summary(time.monotonic() - started)


def _define(app: Forge) -> None:
    seen: set[UUID] = set()

    def pretend(ctx: Context, payload: dict[str, Any]) -> None:
        if payload.get("never_works"):
            raise Failed("550 no such mailbox")
        if ctx.id not in seen:
            seen.add(ctx.id)
            if payload.get("embargoed"):
                raise Snooze(SNOOZE)
            if payload.get("busy"):
                raise Throttled(COOL_DOWN)
        perform(ctx.kind, ctx.id, ctx.attempt, SPEED)

    for kind in PLANS:
        queue = "webhooks" if kind == "webhook_delivery" else "default"
        app.handler(kind, queue=queue, max_attempts=3, backoff=lambda _: RETRY)(pretend)


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
    ids = [UUID(int=0x018F3A7B_5C00_7000_8000_000000000000 + n) for n in range(1, len(payloads) + 1)]
    jobs = [app.job(kind, payload, id=id) for id, (kind, payload) in zip(ids, payloads, strict=True)]
    return [handle.id for handle in app.enqueue_many(jobs)]


def _stay(app: Forge, screen: Screen, database: str) -> None:
    print("\nIt stays up and runs what comes. In another terminal:")
    print(f"  export FORGE_DATABASE_URL={database}")
    print('  forge enqueue send_email --payload \'{"to": "you@example.org"}\'')
    print("  forge jobs --status dead\nCtrl-C ends it.")
    screen.live = False
    while True:
        drain(app, on_job=screen.ended)
        time.sleep(0.2)


class Screen:
    """What happened, as it happens: a table that is drawn over and over in a terminal, else a line per ending."""

    def __init__(self, app: Forge, live: bool) -> None:
        self.app, self.live = app, live
        self.attempts: Counter[str] = Counter()
        self.retried: Counter[str] = Counter()
        self.events: list[str] = []
        self._height = 0
        if live:
            sys.stdout.write("\x1b[?25l")  # no cursor while drawing

    def say(self, text: str) -> None:
        """One line of what goes on."""
        self.events.append(text)
        if not self.live:
            print(text, flush=True)

    def ended(self, ending: Ending) -> None:
        """Note how an attempt ended."""
        claim, outcome = ending.claim, ending.outcome
        self.attempts[claim.kind] += 1
        match outcome:
            case Failed(message) if claim.attempt < claim.max_attempts:
                self.retried[claim.kind] += 1
                said = f"failed, again in {duration(ending.delay)}: {message}"
            case Failed(message) | Dead(message):
                said = f"dead after {claim.attempt} attempts: {message}"
            case Snooze(seconds):
                said = f"snoozed for {duration(seconds)}"
            case Throttled():
                said = f"throttled, queue {claim.queue} cools down for {duration(COOL_DOWN)}"
            case _:
                said = "done"
        self.say(f"{claim.kind:<16}  …{claim.id.hex[-4:]}  attempt {claim.attempt}  {said}")
        self.draw()

    def draw(self) -> None:
        """The table and the latest events, over the ones before."""
        if not self.live:
            return
        lines = [*self._table().splitlines(), "", *(event[:100] for event in self.events[-EVENTS:])]
        back = f"\x1b[{self._height}A" if self._height else ""
        sys.stdout.write(back + "".join(f"\x1b[2K{line}\n" for line in lines) + "\x1b[J")
        sys.stdout.flush()
        self._height = len(lines)

    def _table(self) -> str:
        by_kind = {kind: Counter(job.status for job in self.app.jobs(kind=kind)) for kind in PLANS}
        rows: list[Sequence[object]] = [
            (
                *(kind, counts.total(), counts[Status.PENDING] + counts[Status.IN_PROGRESS], counts[Status.FAILED]),
                *(counts[Status.DONE], counts[Status.DEAD], self.attempts[kind], self.retried[kind]),
            )
            for kind, counts in by_kind.items()
        ]
        rows.append(("total", *(sum(int(str(row[i])) for row in rows) for i in range(1, 8))))
        return table(("kind", "jobs", "waiting", "failed", "done", "dead", "attempts", "retries"), rows)

    def summary(self, seconds: float) -> None:
        """The table once more, for good."""
        self.draw()
        if not self.live:
            print(f"\n{self._table()}")
        retries = f"{self.retried.total()} failures were retried, and the hopeless one is dead"
        print(f"\nall ended after {seconds:.1f} s; {retries}")

    def close(self) -> None:
        """Give the terminal back as it was."""
        if self._height:
            sys.stdout.write("\x1b[?25h")


if __name__ == "__main__":
    sys.exit(main())
