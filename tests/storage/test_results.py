"""What an ended job keeps: its result for a time, and its last errors whatever bytes they hold."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from forge.job import Dead, Done, Ending, Failed, Released, Status
from forge.storage import Storage
from forge.storage.contract import Incarnation
from forge.storage.shared.endings import ERRORS_KEPT

from .helpers import age, claimed, during, end, error, fail, full_job, ids, one, plain_job, plain_jobs

pytestmark = pytest.mark.impl_free

ODD = "snow ☃ \U0001f600 'quote' \"double\" \\ % {x} :name $1"


@pytest.mark.parametrize("result", [b"null", b"0", b'""', b'{"b":[1,2.5,null],"a":"\xe2\x98\x83"}'])
def test_a_result_is_kept_where_the_job_keeps_results(storage: Storage, who: Incarnation, result: bytes) -> None:
    new = full_job(keep_result=60)
    claim = claimed(storage, who, new)
    before = one(storage, new.id)
    with during(storage) as when:
        storage.finalize([Ending(claim, Done(), result=result)])
    assert one(storage, new.id) == replace(before, status=Status.DONE, finished_at=when, result=json.loads(result))


def test_a_result_is_not_kept_where_the_job_does_not_want_it(storage: Storage, who: Incarnation) -> None:
    new = full_job(keep_result=None)
    claim = claimed(storage, who, new)
    before = one(storage, new.id)
    with during(storage) as when:
        storage.finalize([Ending(claim, Done(), result=b'"secret"')])
    assert one(storage, new.id) == replace(before, status=Status.DONE, finished_at=when)


def test_each_job_of_a_batch_gets_its_own_result(storage: Storage, who: Incarnation) -> None:
    jobs = plain_jobs(6, keep_result=60)
    storage.enqueue(jobs)
    claims = storage.claim(who, "letters", 6)
    endings = [Ending(claim, Done(), result=b"%d" % n if n % 2 else None) for n, claim in enumerate(claims)]
    assert storage.finalize(endings[::-1]) == []
    assert [one(storage, job.id).result for job in jobs] == [None, 1, None, 3, None, 5]


def test_a_result_can_be_read_for_as_long_as_it_is_kept(storage: Storage, url: str, who: Incarnation) -> None:
    claim = claimed(storage, who, full_job(keep_result=60))
    storage.finalize([Ending(claim, Done(), result=b"42")])
    age(url, "job_history", "finished_at", 50)
    assert one(storage, claim.id).result == 42
    age(url, "job_history", "finished_at", 20)
    before = one(storage, claim.id)
    assert (before.status, before.result) == (Status.DONE, None)


def test_the_last_errors_are_kept_oldest_first(storage: Storage, who: Incarnation) -> None:
    total = ERRORS_KEPT + 3
    claim = claimed(storage, who, full_job(max_attempts=total))
    times = []
    for n in range(1, total + 1):
        with during(storage) as when:
            storage.finalize([fail(claim, f"error {n}")])
        times.append(when)
        claim = (storage.claim(who, "letters", 1) or [claim])[0]
    expected = [error(times[n - 1], n, f"error {n}", f"Traceback of error {n}") for n in range(4, total + 1)]
    job = one(storage, claim.id)
    assert list(job.errors) == expected
    assert (job.status, job.last_error) == (Status.DEAD, f"error {total}")


def test_cancelling_a_job_with_many_errors_keeps_the_last_of_them(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who, full_job(max_attempts=1000))
    for n in range(ERRORS_KEPT):
        storage.finalize([Ending(claim, Failed(f"error {n}"))])
        (claim,) = storage.claim(who, "letters", 1)
    end(storage, [claim], Released())
    storage.cancel([claim.id])
    messages = [e["message"] for e in one(storage, claim.id).errors]
    assert messages == [f"error {n}" for n in range(1, ERRORS_KEPT)] + ["cancelled by user"]


@pytest.mark.parametrize(
    ("said", "stored"),
    [
        ("nul \0 inside", "nul \\u0000 inside"),
        ("lone \ud800 surrogate", "lone \\ud800 surrogate"),
        ("both \0 and \udcff", "both \\u0000 and \\udcff"),
        (ODD, ODD),
        ("", ""),
        ("long " * 20_000, "long " * 20_000),
    ],
    ids=["nul", "surrogate", "both", "odd", "empty", "long"],
)
def test_a_message_is_stored_whatever_it_contains(storage: Storage, who: Incarnation, said: str, stored: str) -> None:
    new = full_job()
    claim = claimed(storage, who, new)
    before = one(storage, new.id)
    with during(storage) as when:
        assert storage.finalize([Ending(claim, Dead(said), traceback=f"tb: {said}")]) == []
    errors = (error(when, 1, stored, f"tb: {stored}"),)
    assert one(storage, new.id) == replace(before, status=Status.DEAD, finished_at=when, errors=errors)


def test_a_bad_message_does_not_spoil_the_rest_of_its_batch(storage: Storage, who: Incarnation) -> None:
    jobs = plain_jobs(3)
    storage.enqueue(jobs)
    a, b, c = storage.claim(who, "letters", 3)
    assert storage.finalize([Ending(a, Failed("\0")), Ending(b, Done()), Ending(c, Released("\udfff"))]) == []
    found = storage.get(ids(jobs))
    assert [found[i].last_error for i in ids(jobs)] == ["\\u0000", None, "\\udfff"]


def test_errors_stay_through_a_success(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who, plain_job())
    with during(storage) as when:
        storage.finalize([fail(claim, "first try")])
    end(storage, storage.claim(who, "letters", 1))
    assert one(storage, claim.id).errors == (error(when, 1, "first try", "Traceback of first try"),)
