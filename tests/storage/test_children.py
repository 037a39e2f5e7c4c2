"""Jobs that are stored with the end of another: if and only if that ended, and was done."""

from __future__ import annotations

import pytest

from forge.errors import ForgeError
from forge.job import Cancelled, Dead, Done, Ending, Failed, Outcome, Released, Snooze, Status, Throttled
from forge.storage import Storage
from forge.storage.contract import Incarnation, LowWater, Want

from .helpers import check_whole, claimed, during, full_job, ids, one, plain_job, plain_jobs, row, statuses


def want(n: int, queue: str) -> Want:
    return Want(queue, n, LowWater())


def test_children_are_stored_with_the_end_of_their_parent(storage: Storage, url: str, who: Incarnation) -> None:
    parent = claimed(storage, who, full_job())
    child, later = full_job(queue="parcels"), plain_job("parcels", delay=500.0)
    with during(storage) as then:
        assert storage.finalize([Ending(parent, Done(), children=(child, later))]) == []
    assert one(storage, parent.id).status is Status.DONE
    assert one(storage, child.id) == row(child, enqueued_at=then)
    assert one(storage, later.id) == row(later, enqueued_at=then, run_at=then + 500)
    check_whole(url)


def test_one_child_without_a_key_is_stored_too(storage: Storage, who: Incarnation) -> None:
    parent, child = claimed(storage, who), plain_job("parcels")
    assert storage.finalize([Ending(parent, Done(), children=(child,))]) == []
    assert ids(storage.claim(who, "parcels", 5)) == [child.id]


def test_children_of_many_parents_are_stored_together(storage: Storage, url: str, who: Incarnation) -> None:
    storage.enqueue(plain_jobs(40))
    claims = storage.claim(who, "letters", 40)
    children = [(*plain_jobs(20, "parcels"), full_job(queue="parcels")) for _ in claims]
    endings = [Ending(claim, Done(), children=jobs) for claim, jobs in zip(claims, children, strict=True)]
    assert storage.finalize(endings) == []
    assert storage.counts()["parcels"].pending == 40 * 21
    check_whole(url)


@pytest.mark.parametrize(
    "outcome",
    [Failed(), Dead(), Cancelled(), Released("x"), Released(crashed=True), Snooze(9.0), Throttled(9.0)],
    ids=lambda outcome: type(outcome).__name__,
)
def test_no_other_outcome_has_children(storage: Storage, who: Incarnation, outcome: Outcome) -> None:
    parent, child = claimed(storage, who), plain_job("parcels")
    assert storage.finalize([Ending(parent, outcome, children=(child,))]) == []
    assert statuses(storage, [child.id]) == [None]


def test_the_children_of_a_stale_ending_are_not_stored_and_those_beside_it_are(
    storage: Storage, who: Incarnation
) -> None:
    taken, kept = claimed(storage, who), claimed(storage, who, plain_job("parcels"))
    storage.finalize([Ending(taken, Released())])
    lost, found = plain_job("late", dedupe_key="one"), plain_job("late", dedupe_key="two")
    stale = Ending(taken, Done(), children=(lost,))
    assert storage.finalize([stale, Ending(kept, Done(), result=b"1", children=(found,))]) == [stale]
    assert statuses(storage, ids([lost, found])) == [None, Status.PENDING]


def test_an_ending_given_twice_has_its_children_once(storage: Storage, url: str, who: Incarnation) -> None:
    ending = Ending(claimed(storage, who), Done(), children=(full_job(), plain_job()))
    assert storage.finalize([ending, ending]) == [ending]
    assert storage.finalize([ending]) == [ending]
    assert storage.counts()["letters"].pending == 2
    check_whole(url)


def test_of_two_endings_of_one_claim_the_accepted_one_has_children(storage: Storage, who: Incarnation) -> None:
    claim = claimed(storage, who)
    first, second = (Ending(claim, Done(), children=(plain_job("parcels"),)) for _ in range(2))
    assert storage.finalize([first, second]) == [second]
    assert statuses(storage, [first.children[0].id, second.children[0].id]) == [Status.PENDING, None]


def test_a_child_may_take_over_the_key_of_its_parent(storage: Storage, url: str, who: Incarnation) -> None:
    parent = claimed(storage, who, plain_job(dedupe_key="the poller"))
    child = plain_job(dedupe_key="the poller", delay=60.0)
    assert storage.finalize([Ending(parent, Done(), children=(child,))]) == []
    assert one(storage, child.id).dedupe_key == "the poller"
    check_whole(url)


def test_a_child_whose_key_is_taken_is_not_stored_and_its_parent_ends(
    storage: Storage, url: str, who: Incarnation
) -> None:
    holder = plain_job("parcels", dedupe_key="k")
    storage.enqueue([holder])
    parent = claimed(storage, who)
    deduped = plain_job("parcels", dedupe_key="k", on_conflict="replace", payload=b'{"n":2}')
    assert storage.finalize([Ending(parent, Done(), children=(deduped,))]) == []
    assert statuses(storage, ids([parent, deduped])) == [Status.DONE, None]
    assert one(storage, holder.id).payload == {"n": 2}
    check_whole(url)


def test_an_exchange_stores_children_and_claims(storage: Storage, url: str, who: Incarnation) -> None:
    parent = claimed(storage, who)
    waiting, child = plain_job(), plain_job("parcels", dedupe_key="k")
    storage.enqueue([waiting])
    stale, claims = storage.exchange(who, [Ending(parent, Done(), children=(child,))], [want(5, "letters")])
    assert (stale, ids(claims)) == ([], [waiting.id])
    assert statuses(storage, [parent.id, child.id]) == [Status.DONE, Status.PENDING]
    check_whole(url)


def test_an_exchange_with_nothing_but_stale_endings_stores_no_children(storage: Storage, who: Incarnation) -> None:
    parent = claimed(storage, who)
    storage.finalize([Ending(parent, Dead())])
    child = plain_job("parcels")
    ending = Ending(parent, Done(), children=(child,))
    assert storage.exchange(who, [ending], [want(5, "parcels")]) == ([ending], [])
    assert statuses(storage, [child.id]) == [None]


def test_a_child_that_cannot_be_stored_leaves_its_parent_claimed(storage: Storage, url: str, who: Incarnation) -> None:
    parent = claimed(storage, who)
    broken = plain_job("parcels", payload=b"{not JSON")
    ending = Ending(parent, Done(), children=(broken,))
    with pytest.raises(ForgeError):
        storage.finalize([ending])
    assert statuses(storage, [parent.id]) == [Status.IN_PROGRESS]
    assert storage.finalize([Ending(parent, Done())]) == []
    check_whole(url)


def test_listeners_hear_of_children(storage: Storage, who: Incarnation) -> None:
    parent = claimed(storage, who)
    listener = storage.listen()
    listener.wait(0)
    storage.finalize([Ending(parent, Done(), children=(plain_job("parcels"),))])
    assert listener.wait(10) & {"parcels", "*"}
    listener.close()
