"""Settings of queues, and the hints that wake a dispatcher."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from forge.errors import ExitCode, UsageError
from forge.job import QueueSettings, Throttled
from forge.storage import Storage
from forge.storage.contract import Incarnation

from .helpers import claimed, end, plain_job, plain_jobs

pytestmark = pytest.mark.impl_free

SETTINGS: dict[str, Any] = {
    "max_workers": 12,
    "paused": True,
    "backoff_enabled": True,
    "backoff_base_seconds": 17,
    "backoff_max_seconds": 170,
    "throttle": "hint",
    "retain_done_days": 1.5,
    "retain_dead_days": 90.25,
}
UNTOUCHED = {"throttle_attempts": 0, "throttled_until": None}


def test_a_queue_is_made_with_the_defaults(storage: Storage) -> None:
    made = storage.set_queue("letters")
    assert asdict(made) == asdict(QueueSettings("letters"))
    assert storage.queues() == {"letters": made}


def test_every_setting_comes_back_as_it_was_set(storage: Storage) -> None:
    expected = {"name": "letters", **SETTINGS, **UNTOUCHED}
    assert asdict(storage.set_queue("letters", **SETTINGS)) == expected
    assert asdict(storage.queues()["letters"]) == expected


@pytest.mark.parametrize("setting", list(SETTINGS))
def test_one_setting_leaves_the_others(storage: Storage, setting: str) -> None:
    storage.set_queue("letters", **{name: value for name, value in SETTINGS.items() if name != setting})
    storage.set_queue("parcels", max_workers=3)
    changed = storage.set_queue("letters", **{setting: SETTINGS[setting]})
    assert asdict(changed) == {"name": "letters", **SETTINGS, **UNTOUCHED}
    assert storage.queues()["parcels"] == QueueSettings("parcels", max_workers=3)


def test_a_setting_can_be_put_back_to_false_and_to_nothing(storage: Storage) -> None:
    storage.set_queue("letters", paused=True, max_workers=5, retain_done_days=3)
    expected = QueueSettings("letters", paused=False, max_workers=0, retain_done_days=0)
    assert storage.set_queue("letters", paused=False, max_workers=0, retain_done_days=0) == expected


@pytest.mark.parametrize(
    ("wrong", "near"), [("max_worker", "max_workers"), ("pause", "paused"), ("throtle", "throttle")]
)
def test_an_unknown_setting_is_an_error_that_names_the_nearest(storage: Storage, wrong: str, near: str) -> None:
    with pytest.raises(UsageError, match=rf"{wrong}.*{near}") as caught:
        storage.set_queue("letters", **{wrong: 1})
    assert caught.value.exit_code == ExitCode.USAGE
    assert "\n" not in str(caught.value)
    assert storage.queues() == {}


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("max_workers", -1),
        ("max_workers", 10_001),
        ("max_workers", "many"),
        ("paused", "yes"),
        ("throttle", "never"),
        ("backoff_base_seconds", 0),
        ("backoff_max_seconds", 86_401),
        ("retain_done_days", -0.5),
        ("retain_dead_days", float("nan")),
        ("throttle_attempts", 3),
    ],
)
def test_a_wrong_value_is_refused_by_name_and_nothing_changes(storage: Storage, setting: str, value: Any) -> None:
    before = storage.set_queue("letters", max_workers=4)
    with pytest.raises(UsageError, match=setting):
        storage.set_queue("letters", **{setting: value})
    assert storage.queues() == {"letters": before}


@pytest.mark.parametrize("name", ["", "a,b", "nul\0"])
def test_a_queue_without_a_proper_name_is_refused(storage: Storage, name: str) -> None:
    with pytest.raises(UsageError, match="queue"):
        storage.set_queue(name)
    assert storage.queues() == {}


def test_settings_leave_a_throttle_window_alone(storage: Storage, who: Incarnation) -> None:
    end(storage, [claimed(storage, who)], Throttled())
    before = storage.queues()["letters"]
    after = storage.set_queue("letters", max_workers=8)
    assert (after.throttle_attempts, after.throttled_until) == (1, before.throttled_until)


def woken(storage: Storage, cause: Any) -> set[str]:
    """What a listener hears of `cause`."""
    listener = storage.listen()
    try:
        first = listener.wait(0)  # whatever it says on connecting is behind us
        assert first <= {"*"}
        cause()
        return listener.wait(10)
    finally:
        listener.close()


def test_an_enqueue_wakes_a_listener(storage: Storage) -> None:
    heard = woken(storage, lambda: storage.enqueue([plain_job()]))
    assert heard & {"letters", "*"}


def test_a_bulk_enqueue_wakes_a_listener(storage: Storage) -> None:
    heard = woken(storage, lambda: storage.enqueue(plain_jobs(500)))
    assert heard & {"letters", "*"}


def test_a_revived_job_wakes_a_listener(storage: Storage) -> None:
    new = plain_job(delay=1000)
    storage.enqueue([new])
    heard = woken(storage, lambda: storage.retry([new.id]))
    assert heard & {"letters", "*"}


def test_a_cancellation_wakes_the_owner(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who)
    heard = woken(storage, lambda: storage.cancel([claim.id]))
    assert heard & {f"cancel:{who.pod.id}", "*"}


def test_wake_ups_can_be_switched_off_and_on_for_a_queue(storage: Storage) -> None:
    storage.set_queue("letters")
    storage.set_wake("letters", False)
    storage.set_wake("nobody's", False)
    storage.set_wake("letters", True)
    heard = woken(storage, lambda: storage.enqueue([plain_job()]))
    assert heard & {"letters", "*"}
