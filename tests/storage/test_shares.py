"""Shares: what a pod may have of each queue, what it says of itself, and what the leader writes."""

from __future__ import annotations

import pytest

from forge.cluster.shares import changes
from forge.errors import LostLease
from forge.job import QueueSettings
from forge.storage import Storage
from forge.storage.contract import Incarnation
from forge.storage.contract.shares import Cluster, Member, Share, ShareChange

from .helpers import age, claimed, lead, plain_job, sql

pytestmark = pytest.mark.impl_free

TERM = 3


@pytest.fixture(autouse=True)
def _lease(url: str) -> None:
    """Somebody leads under this term."""
    lead(url, TERM)


def letters(storage: Storage, total: int = 10, **settings: bool) -> QueueSettings:
    return storage.set_queue("letters", max_workers=total, **settings)


def rows(storage: Storage) -> list[Share]:
    return sorted(storage.shares.cluster().shares)


def test_a_pod_alone_may_have_all_without_any_leader(storage: Storage, who: Incarnation) -> None:
    letters(storage, 7)
    assert storage.shares.look(who, {"letters": 0}) == {"letters": 7}
    assert rows(storage) == [Share(who.pod.id, "letters", None, 7, 0)]
    letters(storage, 9)
    assert storage.shares.look(who, {"letters": 7}) == {"letters": 9}
    assert rows(storage) == [Share(who.pod.id, "letters", None, 9, 7)]


def test_with_no_word_from_the_leader_it_is_the_total_over_the_pods_rounded_up(
    storage: Storage, who: Incarnation, other: Incarnation
) -> None:
    letters(storage, 10)
    storage.register("elsewhere", ["parcels"], "east", 1)
    storage.register("inline", ["letters"], "east", 1, capacity=0)
    third = storage.register("cat", ["letters"], "east", 2)
    for pod in (who, other, third):
        assert storage.shares.look(pod, {"letters": 0}) == {"letters": 4}


def test_the_leaders_word_counts_and_is_written_down_as_applied(
    storage: Storage, who: Incarnation, other: Incarnation
) -> None:
    letters(storage, 10)
    storage.shares.assign(TERM, [ShareChange(who.pod.id, "letters", 6), ShareChange(other.pod.id, "letters", 4)])
    assert storage.shares.look(who, {"letters": 5}) == {"letters": 6}
    assert rows(storage) == [Share(who.pod.id, "letters", 6, 6, 5), Share(other.pod.id, "letters", 4, 0, 0)]
    letters(storage, 3)
    assert storage.shares.look(who, {"letters": 5}) == {"letters": 3}, "never more than all"
    storage.shares.assign(TERM, [ShareChange(who.pod.id, "letters", 0)])
    assert storage.shares.look(who, {"letters": 2}) == {"letters": 0}
    assert rows(storage)[0] == Share(who.pod.id, "letters", 0, 0, 2)


def test_a_pod_left_alone_may_have_all_once_nobody_else_has_a_part(
    storage: Storage, who: Incarnation, other: Incarnation
) -> None:
    letters(storage, 10)
    storage.shares.assign(TERM, [ShareChange(who.pod.id, "letters", 5), ShareChange(other.pod.id, "letters", 5)])
    storage.serve(other, ["parcels"])
    assert storage.shares.look(other, {"letters": 3}) == {}, "not its queue any more"
    assert storage.shares.look(who, {"letters": 5}) == {"letters": 5}, "the other may still run some"
    storage.deregister(other)
    assert storage.shares.look(who, {"letters": 5}) == {"letters": 10}


def test_of_a_paused_queue_nobody_has_any_and_it_comes_back_as_it_was(storage: Storage, who: Incarnation) -> None:
    letters(storage, 4)
    storage.shares.look(who, {"letters": 0})
    letters(storage, 4, paused=True)
    assert storage.shares.look(who, {"letters": 4}) == {"letters": 0}
    assert rows(storage) == [Share(who.pod.id, "letters", None, 4, 4)]
    letters(storage, 4, paused=False)
    assert storage.shares.look(who, {"letters": 0}) == {"letters": 4}


def test_a_queue_without_settings_is_not_in_the_answer(storage: Storage, who: Incarnation) -> None:
    assert storage.shares.look(who, {"letters": 1}) == {}
    assert rows(storage) == []


def test_a_beat_looks_too(storage: Storage, url: str, who: Incarnation, other: Incarnation) -> None:
    letters(storage, 3)
    age(url, "pod", "beat_at", 50)
    before = {pod.id: pod.beat_at for pod in storage.pods()}
    assert storage.shares.beat(who, {"letters": 0}) == {"letters": 2}
    after = {pod.id: pod.beat_at for pod in storage.pods()}
    assert after[who.pod.id] > before[who.pod.id]
    assert after[other.pod.id] == before[other.pod.id]
    assert storage.shares.beat(other, {}) == {}
    assert rows(storage) == [Share(who.pod.id, "letters", None, 2, 0)]


def test_the_beat_of_a_pod_that_was_reaped_is_none_and_its_rows_are_gone(
    storage: Storage, who: Incarnation, other: Incarnation
) -> None:
    letters(storage)
    for pod in (who, other):
        storage.shares.look(pod, {"letters": 1})
    storage.deregister(other)
    assert [share.pod for share in rows(storage)] == [who.pod.id]
    storage.reap(stale=-1)
    assert rows(storage) == []
    assert storage.shares.beat(who, {"letters": 1}) is None
    assert storage.shares.look(who, {"letters": 1}) == {}
    assert rows(storage) == []


def test_the_leader_sees_all(storage: Storage, who: Incarnation, other: Incarnation) -> None:
    letters(storage, 10)
    storage.set_queue("parcels", max_workers=2, paused=True)
    strong = storage.register("cat", ["letters", "parcels"], "east", 2, capacity=8)
    storage.shares.look(other, {"letters": 1, "parcels": 2})
    storage.shares.assign(TERM, [ShareChange(other.pod.id, "parcels", 1)])
    found = storage.shares.cluster()
    assert found.queues == {"letters": 10, "parcels": 2}
    assert sorted(found.pods) == [
        Member(who.pod.id, ("letters",), 1),
        Member(other.pod.id, ("letters", "parcels"), 1),
        Member(strong.pod.id, ("letters", "parcels"), 8),
    ]
    assert sorted(found.shares) == [
        Share(other.pod.id, "letters", None, 4, 1),
        Share(other.pod.id, "parcels", 1, 1, 2),
    ]
    assert storage.pods()[2] == strong.pod and strong.pod.capacity == 8
    storage.serve(strong, ["letters"], 3)
    assert storage.shares.cluster().pods[-1] == Member(strong.pod.id, ("letters",), 3)


def test_an_empty_database_has_nothing_to_split(storage: Storage) -> None:
    assert storage.shares.cluster() == Cluster({}, [], [])
    storage.shares.assign(TERM, [])


def test_a_leader_whose_term_is_over_writes_nothing(storage: Storage, url: str, who: Incarnation) -> None:
    letters(storage)
    with pytest.raises(LostLease) as caught:
        storage.shares.assign(TERM - 1, [ShareChange(who.pod.id, "letters", 4)])
    assert "\n" not in str(caught.value)
    assert rows(storage) == []
    storage.shares.assign(TERM, [ShareChange(who.pod.id, "letters", 4)])
    for change in (ShareChange(who.pod.id, "letters", 5), ShareChange(who.pod.id, "letters", None)):
        with pytest.raises(LostLease):
            storage.shares.assign(TERM + 1, [change])
    assert sql(url, "select workers, term from {share}") == [(4, TERM)]


def test_rows_go_and_pods_that_are_gone_are_passed_over(storage: Storage, who: Incarnation, other: Incarnation) -> None:
    letters(storage)
    storage.shares.assign(TERM, [ShareChange(other.pod.id, "letters", 4), ShareChange(who.pod.id, "letters", 6)])
    storage.deregister(who)
    told = [
        ShareChange(who.pod.id, "letters", 1),
        ShareChange(other.pod.id, "letters", None),
        ShareChange(other.pod.id, "parcels", 2),
    ]
    storage.shares.assign(TERM, told)
    assert rows(storage) == [Share(other.pod.id, "parcels", 2, 0, 0)]


def test_a_report_that_the_leaders_word_has_overtaken_changes_no_limit(
    storage: Storage, url: str, who: Incarnation, other: Incarnation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader lowers a share between a pod's look and its report: the pod must not go by more than is recorded."""
    import forge.storage.postgres.shares as on_postgres
    import forge.storage.sqlite.shares as on_sqlite

    letters(storage, 10)
    storage.shares.assign(TERM, [ShareChange(who.pod.id, "letters", 4), ShareChange(other.pod.id, "letters", 5)])
    storage.shares.look(who, {"letters": 4})
    storage.shares.assign(TERM, [ShareChange(who.pod.id, "letters", 6)])
    for module in (on_postgres, on_sqlite):
        real = module.news

        def late(seen, running, real=real):  # type: ignore[no-untyped-def]
            return [report._replace(workers=6, applied=6) for report in real(seen, running)]

        monkeypatch.setattr(module, "news", late)
    sql(url, f"update {{share}} set workers = 2 where pod = {who.pod.id}")
    assert storage.shares.look(who, {"letters": 3}) == {"letters": 4}
    assert rows(storage)[0] == Share(who.pod.id, "letters", 2, 4, 3)


def test_rounds_of_leader_and_pods_reach_the_split_and_stay(storage: Storage) -> None:
    letters(storage, 10)
    pods = [storage.register(name, ["letters"], "north", n) for n, name in enumerate("abc")]
    running = dict.fromkeys((pod.pod.id for pod in pods), 0)
    most = 0
    for _ in range(6):
        storage.shares.assign(TERM, changes(storage.shares.cluster()))
        for pod in pods:
            running[pod.pod.id] = storage.shares.look(pod, {"letters": running[pod.pod.id]})["letters"]
        most = max(most, sum(running.values()))
    assert list(running.values()) == [4, 3, 3]
    assert most == 10, "here the leader was there before they began"
    assert changes(storage.shares.cluster()) == []


def test_queues_that_nobody_serves(storage: Storage, who: Incarnation) -> None:
    letters(storage)
    storage.enqueue([plain_job(), plain_job(queue="parcels"), plain_job(queue="notes", delay=1000)])
    storage.set_queue("old")
    assert storage.shares.undeclared() == {"notes": True, "old": False, "parcels": True}
    other = storage.register("bob", ["parcels", "old"], "south", 815)
    assert storage.shares.undeclared() == {"notes": True}
    claimed(storage, other, plain_job(queue="old"))
    storage.deregister(who)
    assert storage.shares.undeclared() == {"letters": True, "notes": True}


def test_a_queue_is_shared_while_other_pods_may_have_workers_of_it(
    storage: Storage, who: Incarnation, other: Incarnation
) -> None:
    letters(storage, 10)
    storage.set_queue("parcels", max_workers=10)
    storage.serve(who, ["letters", "parcels"], 10)
    storage.serve(other, ["letters"], 10)
    storage.shares.look(who, {"letters": 0, "parcels": 0})
    assert storage.shares.shared == {"letters"}
    storage.shares.assign(TERM, [ShareChange(who.pod.id, "letters", 9), ShareChange(other.pod.id, "letters", 1)])
    storage.shares.beat(who, {"letters": 0, "parcels": 0})
    assert storage.shares.shared == {"letters"}
    storage.shares.assign(TERM, [ShareChange(who.pod.id, "letters", 10), ShareChange(other.pod.id, "letters", 0)])
    storage.shares.look(who, {"letters": 0, "parcels": 0})
    assert storage.shares.shared == set(), "the other one has none"
    storage.shares.assign(TERM, [ShareChange(who.pod.id, "letters", 5), ShareChange(other.pod.id, "letters", 5)])
    storage.shares.look(who, {"letters": 0, "parcels": 0})
    assert storage.shares.shared == {"letters"}
    storage.deregister(other)
    storage.shares.look(who, {"letters": 0, "parcels": 0})
    assert storage.shares.shared == set()
