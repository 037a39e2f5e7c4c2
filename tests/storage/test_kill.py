"""kill -9 in the middle of each transaction: what was acknowledged is there, and no row is half-moved."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path
from uuid import UUID

import pytest

from forge.job import JobFilter, Status
from forge.storage import Storage

from . import children
from .helpers import check_whole, sql

pytestmark = pytest.mark.impl_free

VERBS = list(children.LOOPS)


def read_ledger(paths: list[Path]) -> dict[str, set[UUID]]:
    """What was noted, by word. A line cut short by the kill was never acknowledged."""
    noted: dict[str, set[UUID]] = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            for line in path.read_text().splitlines():
                word, _, job_id = line.partition(" ")
                if len(job_id) == 36:
                    noted.setdefault(word, set()).add(UUID(job_id))
    return noted


def run_and_kill(url: str, folder: Path, number: int, rng: random.Random) -> list[Path]:
    """One child for each verb, each killed a random moment after it first wrote something; their ledgers."""
    paths = [folder / f"{number}-{verb}" for verb in VERBS]
    running = [children.start(children.loop, (url, verb, str(path))) for verb, path in zip(VERBS, paths, strict=True)]
    try:
        for path, (process, pipe) in zip(paths, running, strict=True):
            while not path.exists() or not path.stat().st_size:
                assert not pipe.poll(0.001), pipe.recv()
                assert process.is_alive()
        for process, _ in random.Random(number).sample(running, len(running)):
            time.sleep(rng.uniform(0, 0.02))
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
    finally:
        for process, pipe in running:
            process.kill()
            process.join()
            pipe.close()
    return paths


def ids_in(storage: Storage, queue: str, *only: Status) -> set[UUID]:
    """The jobs of a queue, live or ended, or those of some statuses alone."""
    return {job.id for job in storage.find(JobFilter(frozenset(only), [queue]), limit=1_000_000).jobs}


@pytest.mark.parametrize("rounds", [10, pytest.param(40, marks=pytest.mark.slow)])
def test_nothing_acknowledged_is_lost_and_no_row_is_half_moved_by_kills(
    storage: Storage, url: str, tmp_path: Path, rounds: int
) -> None:
    storage.set_queue("prune", retain_done_days=0)
    rng = random.Random(20)
    paths: list[Path] = []
    for number in range(rounds):
        paths += run_and_kill(url, tmp_path, number, rng)
        check_whole(url)
    noted = read_ledger(paths)
    assert set(noted) == {"stored", "claimed", "ending", "ended", "revived"}
    found = storage.get(set().union(*noted.values()))
    # Only what retention may take can be missing: jobs of its queue that somebody had begun to end.
    assert noted["stored"] - set(found) <= noted["ending"]
    assert {found[job_id].status for job_id in noted["claimed"]} <= {Status.IN_PROGRESS}
    assert all(found[job_id].finished_at for job_id in noted["ended"])
    assert ids_in(storage, "offspring") == {
        children.child_of(job_id) for job_id in ids_in(storage, "family", Status.DONE)
    }
    storage.reap(stale=0)
    assert storage.pods() == []
    assert sum(counts.in_progress for counts in storage.counts().values()) == 0
    check_whole(url)
    live = sum(counts.pending + counts.failed for counts in storage.counts().values())
    assert sql(url, "select count(*) from {job}") == [(live,)]
