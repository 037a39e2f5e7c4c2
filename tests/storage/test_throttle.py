"""Throttling: how long the whole queue cools down, and when the curve advances and starts over."""

from __future__ import annotations

from typing import Any

import pytest

from forge.job import Dead, Ending, QueueSettings, Throttled
from forge.storage import Storage
from forge.storage.contract import Incarnation

from .helpers import age, during, end, one, plain_jobs, sql

LONG = 90_000.0  # seconds: more than the longest window


def throttle(storage: Storage, who: Incarnation, url: str, outcome: Throttled | None = None) -> Any:
    """Make the queue and its jobs due, claim one and throttle it; when that was."""
    age(url, "queue", "throttled_until", LONG)
    age(url, "job", "run_at", LONG)
    (claim,) = storage.claim(who, "letters", 1)
    with during(storage) as when:
        end(storage, [claim], outcome or Throttled())
    return when


def standing(storage: Storage) -> tuple[int, Any]:
    settings = storage.queues()["letters"]
    return settings.throttle_attempts, settings.throttled_until


@pytest.fixture(autouse=True)
def jobs(storage: Storage) -> None:
    storage.enqueue(plain_jobs(4))


def test_without_backoff_every_window_is_a_flat_minute(storage: Storage, url: str, who: Incarnation) -> None:
    for n in range(1, 5):
        when = throttle(storage, who, url)
        assert standing(storage) == (n, when + 60)


def test_throttling_an_unknown_queue_makes_it_known_with_the_defaults(
    storage: Storage, url: str, who: Incarnation
) -> None:
    assert storage.queues() == {}
    throttle(storage, who, url)
    assert storage.queues() == {"letters": QueueSettings("letters")}


def test_with_backoff_windows_double_up_to_the_longest(storage: Storage, url: str, who: Incarnation) -> None:
    storage.set_queue("letters", backoff_enabled=True, backoff_base_seconds=7, backoff_max_seconds=50)
    for n, seconds in enumerate([7, 14, 28, 50, 50], 1):
        when = throttle(storage, who, url)
        assert standing(storage) == (n, when + seconds)


def test_the_counter_stops_at_thirty(storage: Storage, url: str, who: Incarnation) -> None:
    storage.set_queue("letters", backoff_enabled=True, backoff_base_seconds=1, backoff_max_seconds=86_400)
    throttle(storage, who, url)
    sql(url, "update {queue} set throttle_attempts = 29")
    for _ in range(3):
        when = throttle(storage, who, url)
        assert standing(storage) == (30, when + 86_400)


def test_only_the_first_throttle_of_a_window_counts(storage: Storage, who: Incarnation) -> None:
    storage.set_queue("letters", backoff_enabled=True)
    first, second, third = storage.claim(who, "letters", 3)
    with during(storage) as when:
        end(storage, [first], Throttled())
    end(storage, [second, third], Throttled(retry_after=500))
    assert standing(storage) == (1, when + 60)
    for claim in (second, third):
        assert one(storage, claim.id).run_at == when + 60


def test_several_throttles_in_one_batch_count_once(storage: Storage, who: Incarnation) -> None:
    storage.set_queue("letters", backoff_enabled=True, backoff_base_seconds=11)
    with during(storage) as when:
        end(storage, storage.claim(who, "letters", 4), Throttled())
    assert standing(storage) == (1, when + 11)


def test_a_batch_cools_each_of_its_queues(storage: Storage, who: Incarnation) -> None:
    storage.enqueue(plain_jobs(2, "parcels"))
    storage.set_queue("parcels", backoff_enabled=True, backoff_base_seconds=5)
    claims = storage.claim(who, "letters", 2) + storage.claim(who, "parcels", 2)
    with during(storage) as when:
        end(storage, claims, Throttled())
    found = {name: (q.throttle_attempts, q.throttled_until) for name, q in storage.queues().items()}
    assert found == {"letters": (1, when + 60), "parcels": (1, when + 5)}


def test_the_handlers_wish_is_ignored_unless_the_queue_grants_it(storage: Storage, url: str, who: Incarnation) -> None:
    for n, outcome in enumerate([Throttled(500), Throttled(500, job_only=True), Throttled(0.5)], 1):
        when = throttle(storage, who, url, outcome)
        assert standing(storage) == (n, when + 60)


def test_a_queue_that_grants_hints_cools_as_long_as_the_handler_says(
    storage: Storage, url: str, who: Incarnation
) -> None:
    storage.set_queue("letters", throttle="hint", backoff_enabled=True, backoff_base_seconds=9)
    when = throttle(storage, who, url, Throttled(432.5))
    assert standing(storage) == (1, when + 432.5)
    when = throttle(storage, who, url, Throttled())
    assert standing(storage) == (2, when + 18)


def test_a_hint_for_the_job_alone_spares_the_queue(storage: Storage, who: Incarnation) -> None:
    storage.set_queue("letters", throttle="hint")
    first, _ = storage.claim(who, "letters", 2)
    before = one(storage, first.id)
    with during(storage) as when:
        end(storage, [first], Throttled(77, job_only=True))
    assert standing(storage) == (0, None)
    after = one(storage, first.id)
    assert (after.run_at, after.attempts, before.attempts) == (when + 77, 0, 1)
    assert len(storage.claim(who, "letters", 9)) == 2


def test_a_job_throttled_for_itself_and_one_for_the_queue_in_one_batch(storage: Storage, who: Incarnation) -> None:
    storage.set_queue("letters", throttle="hint")
    alone, all_of_it = storage.claim(who, "letters", 2)
    with during(storage) as when:
        storage.finalize([Ending(alone, Throttled(5, job_only=True)), Ending(all_of_it, Throttled(33))])
    assert standing(storage) == (1, when + 33)
    assert one(storage, alone.id).run_at == when + 5
    assert one(storage, all_of_it.id).run_at == when + 33


@pytest.mark.parametrize(("past", "counter"), [(119.0, 3), (121.0, 0)])
def test_a_success_starts_the_curve_over_only_well_past_the_window(
    storage: Storage, url: str, who: Incarnation, past: float, counter: int
) -> None:
    (slow,) = storage.claim(who, "letters", 1)
    for _ in range(3):
        throttle(storage, who, url)
    age(url, "queue", "throttled_until", 60 + past)
    end(storage, [slow])
    attempts, until = standing(storage)
    assert attempts == counter
    assert (until is None) == (counter == 0)


def test_a_success_within_the_window_leaves_it(storage: Storage, url: str, who: Incarnation) -> None:
    (slow,) = storage.claim(who, "letters", 1)
    when = throttle(storage, who, url)
    end(storage, [slow])
    assert standing(storage) == (1, when + 60)


def test_a_success_of_another_queue_does_not_start_the_curve_over(storage: Storage, url: str, who: Incarnation) -> None:
    throttle(storage, who, url)
    age(url, "queue", "throttled_until", 600)
    storage.enqueue(plain_jobs(1, "parcels"))
    end(storage, storage.claim(who, "parcels", 1))
    assert standing(storage)[0] == 1


def test_a_failure_does_not_start_the_curve_over(storage: Storage, url: str, who: Incarnation) -> None:
    throttle(storage, who, url)
    age(url, "queue", "throttled_until", 600)
    (claim,) = storage.claim(who, "letters", 1)
    end(storage, [claim], Dead("broken"))
    assert standing(storage)[0] == 1
