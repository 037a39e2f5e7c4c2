"""How far a running job says it is."""

from __future__ import annotations

import pytest

from forge.job import Done, Ending, Failed, Outcome, Released, Snooze
from forge.storage import Storage
from forge.storage.contract import Incarnation

from .helpers import claimed, during, end, full_job, one, plain_job, plain_jobs

pytestmark = pytest.mark.impl_free


def test_a_running_job_says_how_far_it_is(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who, full_job())
    before = one(storage, claim.id)
    assert before.progress is None
    with during(storage) as then:
        storage.progress([(claim.id, claim.token, 12.5, "page 1 of 8")])
    found = one(storage, claim.id)
    assert found.progress == {"percent": 12.5, "message": "page 1 of 8", "at": then}
    storage.progress([(claim.id, claim.token, 25, None)])
    found = one(storage, claim.id)
    assert {**(found.progress or {}), "at": ""} == {"percent": 25, "message": None, "at": ""}
    storage.progress([])


def test_a_stale_token_changes_nothing(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who)
    storage.finalize([Ending(claim, Released())])
    (again,) = storage.claim(who, "letters", 1)
    storage.progress([(claim.id, claim.token, 99.0, "late"), (plain_job().id, 1, 1.0, None)])
    assert one(storage, claim.id).progress is None
    storage.progress([(again.id, again.token, 1.0, "mine")])
    storage.progress([(claim.id, claim.token, 99.0, "late")])
    assert (one(storage, claim.id).progress or {})["percent"] == 1


@pytest.mark.parametrize("outcome", [Done(), Failed(), Released(), Snooze(0.0)], ids=lambda o: type(o).__name__)
def test_progress_ends_with_the_claim(storage: Storage, who: Incarnation, outcome: Outcome) -> None:
    claim = claimed(storage, who)
    storage.progress([(claim.id, claim.token, 50.0, "half")])
    end(storage, [claim], outcome)
    assert one(storage, claim.id).progress is None
    for again in storage.claim(who, "letters", 1):
        assert one(storage, again.id).progress is None


def test_the_last_of_several_notes_counts_and_all_are_kept_in_bounds(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(plain_jobs(3))
    a, b, c = storage.claim(who, "letters", 3)
    storage.progress(
        [
            (c.id, c.token, -5.0, "nul \0 here"),
            (a.id, a.token, 10.0, "first"),
            (a.id, a.token, 20.0, "second"),
            (b.id, b.token, 900.0, "x" * 5000),
            (b.id, b.token, float("nan"), "nonsense"),
        ]
    )
    found = [one(storage, claim.id).progress or {} for claim in (a, c)]
    assert [(f["percent"], f["message"]) for f in found] == [(20, "second"), (0, "nul \\u0000 here")]


def test_a_long_message_is_cut(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who)
    storage.progress([(claim.id, claim.token, 900.0, "x" * 5000)])
    assert {**(one(storage, claim.id).progress or {}), "at": ""} == {"percent": 100, "message": "x" * 500, "at": ""}
