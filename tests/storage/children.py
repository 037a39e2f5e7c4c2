"""What the racing and dying processes of these tests do, and how they are started.

They are forked from a clean server process that has imported this module once: 64 of them start in the time that
three interpreters would take.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any
from uuid import UUID

from forge.job import Cancelled, Claim, Dead, Done, Ending, Failed, NewJob, Outcome, Receipt
from forge.storage import Storage, open_storage
from forge.storage.contract import Incarnation, LowWater, Want

from .helpers import plain_job

CONTEXT = multiprocessing.get_context("forkserver")
PATIENCE = 60.0  # seconds until a child that says nothing is an error


def _child(work: Callable[..., Any], args: Sequence[Any], barrier: Any, answer: Connection) -> None:
    try:
        answer.send((True, work(barrier, *args)))
    except BaseException:  # noqa: BLE001  # whatever it was, the parent must hear of it
        answer.send((False, traceback.format_exc()))


def start(work: Callable[..., Any], args: Sequence[Any], barrier: Any = None) -> tuple[ForkServerProcess, Connection]:
    """A child that runs `work(barrier, *args)`, and where its answer will come from."""
    CONTEXT.set_forkserver_preload([__name__])
    ours, theirs = CONTEXT.Pipe(duplex=False)
    process = CONTEXT.Process(target=_child, args=(work, args, barrier, theirs), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def race(work: Callable[..., Any], each: Sequence[Sequence[Any]]) -> list[Any]:
    """Run `work` once for each arguments, every one in a process of its own, all let go at once; their answers."""
    barrier = CONTEXT.Barrier(len(each))
    started = [start(work, args, barrier) for args in each]
    try:
        return [_answer(pipe, barrier) for _, pipe in started]
    finally:
        for process, pipe in started:
            process.join(5)
            process.kill()
            pipe.close()


def _answer(pipe: Connection, barrier: Any) -> Any:
    try:
        if not pipe.poll(PATIENCE):
            raise TimeoutError("a child said nothing")
        good, value = pipe.recv()
    except BaseException:
        barrier.abort()
        raise
    if not good:
        barrier.abort()
        raise AssertionError(f"a child failed:\n{value}")
    return value


@contextlib.contextmanager
def opened(url: str, barrier: Any = None) -> Iterator[Storage]:
    """The storage, connected; then wait for the others."""
    with open_storage(url, pool_size=1) as storage:
        storage.now()
        if barrier is not None:
            barrier.wait(PATIENCE)
        yield storage


def migrate(barrier: Any, url: str) -> list[tuple[int, str]]:
    barrier.wait(PATIENCE)
    with open_storage(url, pool_size=1) as storage:
        return storage.migrate()


def claim_all(barrier: Any, url: str, name: str, queue: str, batch: int) -> list[UUID]:
    """Claim and finish jobs until none is left; every id claimed, as often as it was."""
    seen: list[UUID] = []
    with opened(url, barrier) as storage:
        who, water = storage.register(name, [queue], "here", os.getpid()), LowWater()
        while True:
            claims = storage.claim(who, queue, batch, water)
            seen += [claim.id for claim in claims]
            stale = storage.finalize([Ending(claim, Done()) for claim in claims])
            assert stale == []
            if not claims and queue not in storage.counts():
                return seen


def produce(barrier: Any, url: str, key: str) -> tuple[UUID, Receipt]:
    new = plain_job(dedupe_key=key)
    with opened(url, barrier) as storage:
        (receipt,) = storage.enqueue([new])
    return new.id, receipt


def finish_each(barrier: Any, url: str, claims: Sequence[Claim], outcome: str) -> list[UUID]:
    """End each claim alone, all finalizers starting each at once; the ids where this one came too late."""
    late = []
    with opened(url) as storage:
        for claim in claims:
            barrier.wait(PATIENCE)
            ending = Ending(claim, Done() if outcome == "done" else Failed("no luck"))
            late += [stale.claim.id for stale in storage.finalize([ending])]
    return late


def cancel_each(barrier: Any, url: str, wanted: Sequence[UUID], seed: int) -> dict[UUID, str]:
    """Cancel jobs a few at a time, in an order of its own; what each was answered."""
    order = random.Random(seed).sample(wanted, len(wanted))
    answers: dict[UUID, str] = {}
    with opened(url, barrier) as storage:
        for i in range(0, len(order), 5):
            answers |= storage.cancel(order[i : i + 5])
    return answers


def work_off(barrier: Any, url: str, name: str, queue: str, seed: int) -> list[tuple[UUID, str]]:
    """Claim jobs and end them one way or another until none is left; what each accepted ending was."""
    rng, ends = random.Random(seed), list[tuple[UUID, str]]()
    with opened(url, barrier) as storage:
        who = storage.register(name, [queue], "here", os.getpid())
        while True:
            claims = storage.claim(who, queue, 10)
            asked = {job_id for job_id, _ in storage.cancel_requests(who)}
            endings = [Ending(claim, _outcome(rng, claim.id in asked)) for claim in claims]
            stale = {ending.claim.id for ending in storage.finalize(endings)}
            ends += [(e.claim.id, type(e.outcome).__name__) for e in endings if e.claim.id not in stale]
            if not claims and queue not in storage.counts():
                return ends


def _outcome(rng: random.Random, asked: bool) -> Outcome:
    if asked and rng.random() < 0.5:
        return Cancelled()
    return rng.choice([Done(), Done(), Failed("no luck"), Dead("broken")])


class Ledger:
    """An append-only file outside the database: one write per event, so a kill loses none that was noted."""

    def __init__(self, path: str) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, word: str, ids: Sequence[UUID]) -> None:
        os.write(self._file, b"".join(b"%s %s\n" % (word.encode(), str(i).encode()) for i in ids))


def _some(queue: str, count: int = 12) -> list[NewJob]:
    """Jobs of which every third has a key."""
    jobs = [plain_job(queue) for _ in range(count)]
    return [job._replace(dedupe_key=str(job.id)) if n % 3 == 0 else job for n, job in enumerate(jobs)]


def _stored(storage: Storage, ledger: Ledger, queue: str, count: int = 12) -> None:
    jobs = _some(queue, count)
    storage.enqueue(jobs)
    ledger.note("stored", [job.id for job in jobs])


def _held(storage: Storage, ledger: Ledger, who: Incarnation, queue: str) -> list[Claim]:
    _stored(storage, ledger, queue)
    return storage.claim(who, queue, 12)


def loop(_: Any, url: str, verb: str, path: str) -> None:
    """Do one verb over and over, each time noting what was acknowledged, until killed."""
    ledger = Ledger(path)
    with opened(url) as storage:
        who = storage.register(verb, [verb], "here", os.getpid())
        while True:
            LOOPS[verb](storage, ledger, who)


def _loop_enqueue(storage: Storage, ledger: Ledger, who: Incarnation) -> None:
    _stored(storage, ledger, "enqueue", 3)
    _stored(storage, ledger, "enqueue", 40)


def _loop_claim(storage: Storage, ledger: Ledger, who: Incarnation) -> None:
    ledger.note("claimed", [claim.id for claim in _held(storage, ledger, who, "claim")])


def _loop_finalize(storage: Storage, ledger: Ledger, who: Incarnation) -> None:
    claims = _held(storage, ledger, who, "finalize")
    storage.finalize([Ending(claim, Done() if n % 2 else Dead("d")) for n, claim in enumerate(claims)])
    ledger.note("ended", [claim.id for claim in claims])


def _loop_exchange(storage: Storage, ledger: Ledger, who: Incarnation) -> None:
    claims = _held(storage, ledger, who, "exchange")
    for _ in range(3):
        endings = [Ending(claim, Done()) for claim in claims]
        _stored(storage, ledger, "exchange")
        _, claims = storage.exchange(who, endings, [Want("exchange", 12, LowWater())])
        ledger.note("ended", [ending.claim.id for ending in endings])


def child_of(parent: UUID) -> UUID:
    """The id of the one follow-up job that a job of `_loop_family` has."""
    return UUID(int=parent.int ^ 1)


def _loop_family(storage: Storage, ledger: Ledger, who: Incarnation) -> None:
    claims = _held(storage, ledger, who, "family")
    children = [plain_job("offspring", id=child_of(c.id), dedupe_key=f"child of {c.id}") for c in claims]
    endings = [Ending(claim, Done(), children=(child,)) for claim, child in zip(claims, children, strict=True)]
    storage.finalize(endings)
    ledger.note("ended", [claim.id for claim in claims])
    ledger.note("stored", [child.id for child in children])


def _loop_revive(storage: Storage, ledger: Ledger, who: Incarnation) -> None:
    claims = _held(storage, ledger, who, "revive")
    for verb in (storage.retry, storage.requeue):
        storage.finalize([Ending(claim, Dead("d")) for claim in claims])
        ledger.note("revived", list(verb([claim.id for claim in claims])))
        claims = storage.claim(who, "revive", 12)


def _loop_prune(storage: Storage, ledger: Ledger, who: Incarnation) -> None:
    claims = _held(storage, ledger, who, "prune")
    ledger.note("ending", [claim.id for claim in claims])
    storage.finalize([Ending(claim, Done()) for claim in claims])
    storage.prune(5)


LOOPS: dict[str, Callable[[Storage, Ledger, Incarnation], None]] = {
    "enqueue": _loop_enqueue,
    "claim": _loop_claim,
    "finalize": _loop_finalize,
    "exchange": _loop_exchange,
    "family": _loop_family,
    "revive": _loop_revive,
    "prune": _loop_prune,
}


def either(barrier: Any, work: Callable[..., Any], args: Sequence[Any]) -> Any:
    """For races in which not all do the same."""
    return work(barrier, *args)
