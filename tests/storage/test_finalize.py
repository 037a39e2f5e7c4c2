"""Ending claims: what each outcome makes of the whole row, alone and in a mixed batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from forge.job import Cancelled, Dead, Done, Ending, Failed, Job, NewJob, Outcome, Released, Snooze, Status, Throttled
from forge.storage import Storage
from forge.storage.contract import Incarnation

from .helpers import age, claimed, during, end, error, fail, full_job, ids, one, plain_job, plain_jobs, statuses


def finish(storage: Storage, who: Incarnation, new: NewJob, ending: Outcome, **more: Any) -> tuple[Job, Any]:
    """Claim and end a job: how it stood while it ran, and when it ended."""
    claim = claimed(storage, who, new)
    before = one(storage, new.id)
    with during(storage) as when:
        assert storage.finalize([Ending(claim, ending, **more)]) == []
    return before, when


def test_finalizing_nothing_is_fine(storage: Storage) -> None:
    assert storage.finalize([]) == []


def test_done_moves_the_row_to_history_as_it_was(storage: Storage, who: Incarnation) -> None:
    new = full_job()
    before, when = finish(storage, who, new, Done())
    assert one(storage, new.id) == replace(before, status=Status.DONE, finished_at=when)
    assert storage.counts() == {}


def test_failed_waits_for_its_retry(storage: Storage, who: Incarnation) -> None:
    new = full_job()
    before, when = finish(storage, who, new, Failed("no luck"), delay=321.5, traceback="line 1\nline 2")
    assert one(storage, new.id) == replace(
        before,
        status=Status.FAILED,
        run_at=when + 321.5,
        claimed_at=None,
        pod=None,
        errors=(error(when, 1, "no luck", "line 1\nline 2"),),
    )


def test_failed_is_dead_once_its_attempts_are_used_up(storage: Storage, who: Incarnation) -> None:
    new = full_job(max_attempts=2)
    claim = claimed(storage, who, new)
    with during(storage) as first:
        storage.finalize([fail(claim, "one")])
    (claim,) = storage.claim(who, "letters", 1)
    before = one(storage, new.id)
    with during(storage) as second:
        storage.finalize([fail(claim, "two", delay=99)])
    errors = (error(first, 1, "one", "Traceback of one"), error(second, 2, "two", "Traceback of two"))
    assert one(storage, new.id) == replace(before, status=Status.DEAD, finished_at=second, errors=errors)
    assert storage.claim(who, "letters", 1) == []


def test_dead_is_dead_at_once(storage: Storage, who: Incarnation) -> None:
    new = full_job()
    before, when = finish(storage, who, new, Dead("bad address"), traceback="there")
    errors = (error(when, 1, "bad address", "there"),)
    assert one(storage, new.id) == replace(before, status=Status.DEAD, finished_at=when, errors=errors)


def test_cancelled_ends_the_job(storage: Storage, who: Incarnation) -> None:
    new = full_job()
    before, when = finish(storage, who, new, Cancelled())
    errors = (error(when, 1, "cancelled by user"),)
    assert one(storage, new.id) == replace(before, status=Status.CANCELLED, finished_at=when, errors=errors)


def test_throttled_goes_back_with_its_attempt_until_the_queue_is_cool(storage: Storage, who: Incarnation) -> None:
    new = full_job()
    before, when = finish(storage, who, new, Throttled())
    assert one(storage, new.id) == replace(
        before, status=Status.PENDING, attempts=0, run_at=when + 60, claimed_at=None, pod=None
    )


def test_snoozed_goes_back_with_its_attempt_for_a_while(storage: Storage, who: Incarnation) -> None:
    new = full_job()
    before, when = finish(storage, who, new, Snooze(12.25))
    assert one(storage, new.id) == replace(
        before, status=Status.PENDING, attempts=0, run_at=when + 12.25, claimed_at=None, pod=None
    )
    assert storage.queues() == {}


def test_released_goes_back_with_its_attempt_and_is_due(storage: Storage, who: Incarnation) -> None:
    new = full_job()
    before, _ = finish(storage, who, new, Released())
    after = one(storage, new.id)
    assert after == replace(before, status=Status.PENDING, attempts=0, run_at=after.run_at, claimed_at=None, pod=None)
    assert ids(storage.claim(who, "letters", 1)) == [new.id]


def test_released_with_a_message_says_so_in_the_errors(storage: Storage, who: Incarnation) -> None:
    new = full_job()
    before, when = finish(storage, who, new, Released("no handler for mail.send"))
    after = one(storage, new.id)
    errors = (error(when, 1, "no handler for mail.send"),)
    expected = replace(
        before, status=Status.PENDING, attempts=0, run_at=after.run_at, claimed_at=None, pod=None, errors=errors
    )
    assert after == expected


def test_a_crash_is_counted_apart_from_attempts(storage: Storage, who: Incarnation) -> None:
    new = full_job()
    before, when = finish(storage, who, new, Released("killed by SIGSEGV", crashed=True))
    after = one(storage, new.id)
    assert after == replace(
        before,
        status=Status.PENDING,
        attempts=0,
        crashes=1,
        run_at=after.run_at,
        claimed_at=None,
        pod=None,
        errors=(error(when, 1, "killed by SIGSEGV"),),
    )


@pytest.mark.parametrize("max_crashes", [1, 3])
def test_a_poison_job_is_dead_at_exactly_max_crashes(storage: Storage, who: Incarnation, max_crashes: int) -> None:
    new = full_job()
    storage.enqueue([new])
    seen = []
    for _ in range(max_crashes):
        (claim,) = storage.claim(who, "letters", 1)
        crash = Ending(claim, Released("killed by SIGABRT", crashed=True))
        assert storage.finalize([crash], max_crashes=max_crashes) == []
        seen.append((one(storage, new.id).crashes, one(storage, new.id).status))
    assert seen == [(n, Status.PENDING) for n in range(1, max_crashes)] + [(max_crashes, Status.DEAD)]
    assert [e["message"] for e in one(storage, new.id).errors] == ["killed by SIGABRT"] * max_crashes


@pytest.mark.parametrize("asked", [False, True])
def test_a_job_that_ends_by_a_crash_keeps_its_attempt_in_the_row(
    storage: Storage, who: Incarnation, asked: bool
) -> None:
    new = full_job()
    claim = claimed(storage, who, new)
    if asked:
        storage.cancel([new.id])
    before = one(storage, new.id)
    with during(storage) as when:
        storage.finalize([Ending(claim, Released("killed by SIGBUS", crashed=True), traceback="at 0")], max_crashes=1)
    assert one(storage, new.id) == replace(
        before,
        status=Status.CANCELLED if asked else Status.DEAD,
        crashes=1,
        finished_at=when,
        errors=(error(when, 1, "cancelled by user" if asked else "killed by SIGBUS", "at 0"),),
    )


def test_refunds_and_failures_add_up(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who, full_job())
    seen = []
    for outcome in (Failed(), Snooze(0.0), Released(), Failed(), Released(crashed=True), Failed()):
        storage.finalize([Ending(claim, outcome)])
        (claim,) = storage.claim(who, "letters", 1)
        seen.append(claim.attempt)
    assert seen == [2, 2, 2, 3, 3, 4]


def test_a_mixed_batch_does_to_each_what_it_would_alone(storage: Storage, url: str, who: Incarnation) -> None:
    storage.enqueue(
        [full_job(queue=queue, max_attempts=2) for queue in ("a", "b", "c") for _ in range(6)]
        + plain_jobs(2, "c", max_attempts=1, priority=9)
    )
    claims = [claim for queue in "abc" for claim in storage.claim(who, queue, 10)]
    outcomes: list[Outcome] = [Done(), Failed("f"), Dead("d"), Cancelled("c"), Snooze(7.0), Released()]
    outcomes += [Failed("f"), Done(), Released("bye"), Released("boom", crashed=True), Dead("d"), Done()]
    outcomes += [Throttled(), Done(), Failed("f"), Throttled(), Snooze(3.0), Cancelled("c"), Failed("last"), Done()]
    before = storage.get(ids(claims))
    endings = [Ending(claim, outcome, 50.0) for claim, outcome in zip(claims, outcomes, strict=True)]
    with during(storage) as when:
        assert storage.finalize(endings[::-1]) == []
    after = storage.get(ids(claims))
    assert len(after) == 20
    for claim, outcome in zip(claims, outcomes, strict=True):
        assert after[claim.id] == expected_after(before[claim.id], outcome, when)
    assert [queue for queue, settings in storage.queues().items() if settings.throttled_until] == ["c"]


def expected_after(before: Job, outcome: Outcome, when: Any) -> Job:
    """The rules once more, in few words: the row a mixed batch's ending should leave."""
    message = getattr(outcome, "message", None)
    errors = (error(when, 1, message),) if message else ()
    back = replace(before, status=Status.PENDING, attempts=0, claimed_at=None, pod=None, errors=errors)
    gone = replace(before, finished_at=when, errors=errors)
    match outcome:
        case Done():
            return replace(gone, status=Status.DONE)
        case Dead():
            return replace(gone, status=Status.DEAD)
        case Failed() if before.max_attempts == 1:
            return replace(gone, status=Status.DEAD)
        case Failed():
            return replace(back, status=Status.FAILED, attempts=1, run_at=when + 50)
        case Cancelled():
            return replace(gone, status=Status.CANCELLED)
        case Throttled():
            return replace(back, run_at=when + 60)
        case Snooze():
            return replace(back, run_at=when + outcome.seconds)
        case Released(crashed=True):
            return replace(back, run_at=when + 50, crashes=1)
        case Released():
            return replace(back, status=Status.FAILED, run_at=when + 50)
    raise AssertionError(outcome)


def test_a_large_batch_ends_every_job_of_it(storage: Storage, who: Incarnation) -> None:
    jobs = plain_jobs(2500)
    storage.enqueue(jobs)
    claims = storage.claim(who, "letters", 2500)
    end(storage, claims[::-1])
    assert storage.ended_counts() == {"letters": {Status.DONE: 2500}}
    assert storage.counts() == {}


def test_a_cancel_that_comes_while_it_runs_lets_done_stay_done(storage: Storage, who: Incarnation) -> None:
    new = full_job()
    claim = claimed(storage, who, new)
    with during(storage) as asked:
        assert storage.cancel([new.id]) == {new.id: "requested"}
    before = one(storage, new.id)
    assert before.cancel_requested_at == asked
    with during(storage) as when:
        assert storage.finalize([Ending(claim, Done())]) == []
    assert one(storage, new.id) == replace(before, status=Status.DONE, finished_at=when)


@pytest.mark.parametrize(
    "outcome",
    [
        Failed("f"),
        Dead("d"),
        Throttled(),
        Snooze(5.0),
        Released(),
        Released("crash", crashed=True),
        Cancelled("stopped"),
    ],
    ids=lambda outcome: type(outcome).__name__,
)
def test_a_cancel_that_comes_while_it_runs_makes_any_other_outcome_cancelled(
    storage: Storage, who: Incarnation, outcome: Outcome
) -> None:
    new = full_job()
    claim = claimed(storage, who, new)
    storage.cancel([new.id])
    with during(storage) as when:
        assert storage.finalize([Ending(claim, outcome)]) == []
    after = one(storage, new.id)
    assert (after.status, after.finished_at, after.last_error) == (Status.CANCELLED, when, "cancelled by user")
    assert storage.claim(who, "letters", 1) == []
    assert storage.cancel_requests(who) == []


def test_a_retry_after_the_wait_goes_through_all_states(storage: Storage, url: str, who: Incarnation) -> None:
    new = plain_job(max_attempts=3)
    seen = []
    claim = claimed(storage, who, new)
    for _ in range(3):
        seen += statuses(storage, [new.id])
        storage.finalize([fail(claim, delay=1000)])
        seen += statuses(storage, [new.id])
        age(url, "job", "run_at", 1001)
        again = storage.claim(who, "letters", 1)
        claim = again[0] if again else claim
    assert seen == [Status.IN_PROGRESS, Status.FAILED] * 2 + [Status.IN_PROGRESS, Status.DEAD]
