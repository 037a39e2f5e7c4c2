"""A queue's backoff is the curve of every job whose task names none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from forge import Backoff, Forge, Status
from forge.inline import drain
from forge.job import Failed, Released
from forge.storage import Storage
from forge.storage.contract import Incarnation

from .helpers import age, claimed, during, end, one, plain_job, sql

CURVE: dict[str, Any] = {"backoff_enabled": True, "backoff_base_seconds": 7, "backoff_max_seconds": 50}


def test_it_doubles_with_each_attempt_up_to_its_longest(storage: Storage, url: str, who: Incarnation) -> None:
    storage.set_queue("letters", **CURVE)
    new = plain_job(max_attempts=100)
    claim = claimed(storage, who, new)
    for seconds in (14, 28, 50, 50):
        with during(storage) as when:
            end(storage, [claim], Failed("no"), delay=-3.0)
        assert one(storage, new.id).run_at == when + seconds
        age(url, "job", "run_at", 100_000)
        (claim,) = storage.claim(who, "letters", 1)


def test_a_very_high_attempt_is_no_overflow(storage: Storage, url: str, who: Incarnation) -> None:
    storage.set_queue("letters", backoff_enabled=True, backoff_base_seconds=86_400, backoff_max_seconds=86_400)
    claim = claimed(storage, who, plain_job(max_attempts=32_001))
    sql(url, "update {job} set attempts = 32000")
    with during(storage) as when:
        end(storage, [claim], Failed("no"), delay=-3.0)
    assert one(storage, claim.id).run_at == when + 86_400


@pytest.mark.parametrize("settings", [{}, {**CURVE, "backoff_enabled": False}, None])
def test_where_the_queue_has_none_it_is_the_default_that_was_drawn(
    storage: Storage, who: Incarnation, settings: dict[str, Any] | None
) -> None:
    if settings is not None:
        storage.set_queue("letters", **settings)
    claim = claimed(storage, who)
    with during(storage) as when:
        end(storage, [claim], Failed("no"), delay=-3.0)
    assert one(storage, claim.id).run_at == when + 3


def test_a_tasks_own_curve_comes_first(storage: Storage, who: Incarnation) -> None:
    storage.set_queue("letters", **CURVE)
    claim = claimed(storage, who)
    with during(storage) as when:
        end(storage, [claim], Failed("no"), delay=3.0)
    assert one(storage, claim.id).run_at == when + 3


def test_what_is_given_back_keeps_its_place(storage: Storage, who: Incarnation) -> None:
    storage.set_queue("letters", **CURVE)
    claim = claimed(storage, who)
    before = one(storage, claim.id).run_at
    end(storage, [claim], Released())
    assert one(storage, claim.id).run_at == before


def test_an_operator_changes_it_for_the_next_failure(storage: Storage, url: str, who: Incarnation) -> None:
    storage.set_queue("letters", **CURVE)
    claim = claimed(storage, who)
    storage.set_queue("letters", backoff_base_seconds=11)
    with during(storage) as when:
        end(storage, [claim], Failed("no"), delay=-3.0)
    assert one(storage, claim.id).run_at == when + 22


@pytest.fixture
def app(storage: Storage, url: str) -> Iterator[Forge]:
    with Forge(url) as opened:
        yield opened


@pytest.mark.parametrize(
    ("backoff", "seconds"),
    [(None, 14), (Backoff("fixed", 3), 3), ("none", 0), (lambda n: 4, 4), (lambda n: 1 / 0, 14)],
    ids=["none named", "fixed", "no delay", "callable", "broken callable"],
)
def test_tasks_follow_it_unless_they_name_their_own(app: Forge, storage: Storage, backoff: Any, seconds: int) -> None:
    storage.set_queue("default", **CURVE)

    @app.task(backoff=backoff, max_attempts=2)
    def fail() -> None:
        raise ValueError("no luck")

    job = fail.enqueue()
    with during(storage) as when:
        drain(app, until_empty=False)
    assert (job.status, job.job().run_at) == (Status.FAILED, when + seconds)
