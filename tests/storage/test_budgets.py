"""Budgets: what is leased, spent, given back, lost and drained, to the token."""

from __future__ import annotations

import random
import threading

import psycopg
import pytest

from forge.errors import DatabaseError, ForgeError, UsageError
from forge.storage import Storage, open_storage
from forge.storage.contract import Incarnation
from forge.storage.contract.budgets import LEASE, Ask, Budget, Grant, Limit

from .helpers import age, is_sqlite, sql

pytestmark = pytest.mark.impl_free

SLOW = 1e-6  # tokens a second: none comes back during a test


def mail(storage: Storage, capacity: int = 100, refill: float = SLOW) -> Limit:
    limit = Limit(capacity, refill)
    storage.budgets.set("mail", limit)
    return limit


def lease(storage: Storage, who: Incarnation, ask: Ask, scope: str = "mail") -> Grant:
    found = storage.budgets.lease(who, scope, ask)
    assert found is not None
    return found


def want(n: int, *, held: int = 0, spent: int = 0, least: int = 1) -> Ask:
    return Ask(held, spent, least, n)


def pass_by(url: str, seconds: float) -> None:
    """Let time go by for every bucket and every lease."""
    age(url, "budget", "at", seconds)
    for column in ("leased_at", "until"):
        age(url, "budget_lease", column, seconds)


def state(storage: Storage, scope: str = "mail") -> tuple[float, dict[int, int]]:
    (found,) = (budget for budget in storage.budgets.all() if budget.scope == scope)
    return round(found.tokens, 3), dict(found.leased)


def test_a_new_budget_is_full_and_every_field_of_it_is_shown(storage: Storage, who: Incarnation) -> None:
    storage.budgets.set("mail", Limit(30, 0.5))
    storage.budgets.set("calls", Limit(7, SLOW))
    told = lease(storage, who, want(2), "calls")
    assert told._replace(left=round(told.left, 3)) == Grant(Limit(7, SLOW), 0, 2, 5.0, 1)
    calls, letters = storage.budgets.all()
    assert letters == Budget("mail", 30, 0.5, 30.0, {})
    assert calls._replace(tokens=round(calls.tokens, 3)) == Budget("calls", 7, SLOW, 5.0, {who.pod.id: 2})


def test_of_a_budget_that_nobody_made_there_is_no_lease(storage: Storage, who: Incarnation) -> None:
    assert storage.budgets.lease(who, "mail", want(1)) is None
    assert not storage.budgets.drain("mail")
    assert storage.budgets.all() == []


def test_what_a_pod_leases_the_bucket_has_no_more(storage: Storage, who: Incarnation, other: Incarnation) -> None:
    mail(storage, 100)
    assert lease(storage, who, want(30)).granted == 30
    assert lease(storage, other, want(25)).granted == 25
    assert state(storage) == (45.0, {who.pod.id: 30, other.pod.id: 25})


def test_what_was_spent_leaves_the_lease_and_what_was_not_goes_back(storage: Storage, who: Incarnation) -> None:
    mail(storage, 100)
    lease(storage, who, want(40))
    told = lease(storage, who, want(3, held=15, spent=25))
    assert (told.kept, told.granted) == (15, 3)
    assert state(storage) == (57.0, {who.pod.id: 18})
    lease(storage, who, Ask(10, 30, 0, 0))  # eighteen less five spent less ten held: three go back
    assert state(storage) == (60.0, {who.pod.id: 10})
    told = lease(storage, who, Ask(0, 32, 0, 0))
    assert (told.kept, told.granted) == (0, 0)
    assert state(storage) == (68.0, {})
    assert lease(storage, who, want(1, spent=32)).granted == 1


def test_a_pod_gets_what_would_leave_half_to_share_or_what_it_cannot_do_without(
    storage: Storage, who: Incarnation, other: Incarnation
) -> None:
    mail(storage, 100)
    assert lease(storage, who, want(1000)).granted == 50
    assert lease(storage, other, want(1000)).granted == 25
    assert lease(storage, other, want(1000, held=25, least=0)).granted == 0
    assert lease(storage, other, want(1000, held=25, least=20)).granted == 20
    assert state(storage) == (5.0, {who.pod.id: 50, other.pod.id: 45})


def test_too_few_to_be_of_use_are_left_to_others(storage: Storage, who: Incarnation, other: Incarnation) -> None:
    mail(storage, 10)
    assert lease(storage, who, want(9, least=9)).granted == 9
    told = lease(storage, other, want(5, least=2))
    assert told._replace(left=round(told.left, 3)) == Grant(Limit(10, SLOW), 0, 0, 1.0, 2)
    assert lease(storage, other, want(5, least=1)).granted == 1


def test_it_refills_with_time_and_with_what_is_leased_never_above_its_capacity(
    storage: Storage, url: str, who: Incarnation
) -> None:
    mail(storage, 100, 2.0)
    lease(storage, who, want(50, least=50))
    pass_by(url, 1.0)
    tokens, leased = state(storage)
    assert leased == {who.pod.id: 50}
    assert tokens == 50.0, "the leased ones count"
    lease(storage, who, want(1, held=20, spent=30))
    pass_by(url, 3.0)
    tokens, leased = state(storage)
    assert leased == {who.pod.id: 21}
    assert 55.0 <= tokens <= 79.0
    pass_by(url, 1000.0)
    assert state(storage) == (100.0, {})


def test_a_lease_that_has_lapsed_gives_back_its_room_but_not_its_tokens(
    storage: Storage, url: str, who: Incarnation, other: Incarnation
) -> None:
    """Its pod may have spent them the moment before."""
    mail(storage, 20, 1.0)
    lease(storage, who, want(20, least=20))
    pass_by(url, LEASE)
    tokens, leased = state(storage)
    assert leased == {}
    assert tokens < 4.9, "while they were leased nothing was refilled, and they themselves are not put back"
    assert lease(storage, other, want(20)).granted <= 4
    pass_by(url, LEASE + 100.0)
    assert state(storage) == (20.0, {}), "in the end nothing is missing"


def test_what_was_refilled_before_and_after_a_lease_lapsed_counts(storage: Storage, url: str, who: Incarnation) -> None:
    mail(storage, 100, 2.0)
    lease(storage, who, want(30, least=30))
    lease(storage, who, want(20, spent=30, least=20))  # 50 left, 20 leased: room for 30
    pass_by(url, LEASE + 7.0)  # 10 in the first five seconds, 14 in the others
    assert 74.0 <= state(storage)[0] < 90.0


def test_the_pod_itself_has_nothing_any_more_once_its_lease_has_lapsed(
    storage: Storage, url: str, who: Incarnation
) -> None:
    mail(storage, 20)
    lease(storage, who, want(10))
    pass_by(url, LEASE)
    told = lease(storage, who, want(4, held=8, spent=2))
    assert (told.kept, told.granted) == (0, 4)
    assert state(storage) == (6.0, {who.pod.id: 4})
    lease(storage, who, Ask(0, 2, 0, 0))
    assert state(storage) == (10.0, {})


def test_a_request_renews_the_lease(storage: Storage, url: str, who: Incarnation) -> None:
    mail(storage, 20)
    lease(storage, who, want(5))
    for _ in range(3):
        pass_by(url, LEASE * 0.8)
        assert lease(storage, who, Ask(5, 0, 0, 0)).kept == 5
    assert state(storage) == (15.0, {who.pod.id: 5})


def test_tokens_whose_grant_got_lost_go_back_with_the_next_request(storage: Storage, who: Incarnation) -> None:
    mail(storage, 20)
    lease(storage, who, want(5))
    lease(storage, who, want(4, held=3, spent=2))  # nobody heard of these four
    told = lease(storage, who, want(1, held=3, spent=2))
    assert (told.kept, told.granted) == (3, 1)
    assert state(storage) == (14.0, {who.pod.id: 4})


class Late(Incarnation):
    """Somebody whose request was made before others, and arrives after them."""

    def mint(self) -> int:
        return self.pod.id << 32


def test_a_request_that_arrives_after_a_later_one_changes_nothing(storage: Storage, who: Incarnation) -> None:
    mail(storage, 20)
    lease(storage, who, want(5))
    with pytest.raises(DatabaseError, match="came after a later one"):
        storage.budgets.lease(Late(who.pod), "mail", want(7))
    assert state(storage) == (15.0, {who.pod.id: 5})


def test_a_pod_that_tells_what_cannot_be_has_nothing(storage: Storage, who: Incarnation) -> None:
    """Better a token too few than one too many."""
    mail(storage, 20)
    lease(storage, who, want(5))
    assert lease(storage, who, want(1, held=6)).kept == 0
    assert lease(storage, who, want(1, held=1, spent=4)).kept == 0
    assert sum(state(storage)[1].values()) == 1


def test_a_lease_outlives_its_pod_until_it_lapses(storage: Storage, url: str, who: Incarnation) -> None:
    mail(storage, 20)
    lease(storage, who, want(10))
    storage.deregister(who)
    assert state(storage) == (10.0, {who.pod.id: 10})
    pass_by(url, LEASE)
    assert state(storage)[1] == {}


def test_a_drained_budget_has_nothing_and_neither_have_its_leases(
    storage: Storage, url: str, who: Incarnation, other: Incarnation
) -> None:
    mail(storage, 20)
    lease(storage, who, want(10))
    assert storage.budgets.drain("mail")
    assert state(storage) == (0.0, {who.pod.id: 10}), "it may spend them until it hears of it"
    told = lease(storage, who, want(3, held=9, spent=1))
    assert (told.kept, told.granted) == (0, 0)
    assert state(storage) == (0.0, {who.pod.id: 0})
    lease(storage, other, want(3))
    storage.budgets.set("mail", Limit(20, 1.0))
    pass_by(url, 4.0)
    assert 4.0 <= state(storage)[0] <= 9.0


def test_both_databases_do_the_same_sums(sqlite_url: str, pg_url: str) -> None:
    """Hundreds of requests, true and false ones, lapses, drains and other limits. A token comes back in 100 seconds:
    the time that the test itself takes does not show."""
    made, ttl = random.Random(5), 450.0
    with open_storage(sqlite_url) as one, open_storage(pg_url) as two:
        for storage in (one, two):
            storage.budgets.set("mail", Limit(30, 0.01))
        pods = [[storage.register("pod", ["letters"], "north", 1) for _ in range(4)] for storage in (one, two)]
        held, spent = [0] * 4, [0] * 4
        for _ in range(400):
            chance, n = made.random(), made.randrange(4)
            if chance < 0.25:
                gone_by = 100.0 * made.choice((1, 1, 2, 4, 5, 30))
                for url in (sqlite_url, pg_url):
                    pass_by(url, gone_by)
            elif chance < 0.28:
                assert one.budgets.drain("mail") and two.budgets.drain("mail")
            elif chance < 0.31:
                limit = Limit(made.choice((5, 30, 60)), 0.01)
                for storage in (one, two):
                    storage.budgets.set("mail", limit)
            else:
                used = made.randint(0, held[n])
                held[n], spent[n] = held[n] - used, spent[n] + used
                if chance < 0.35:
                    held[n] += 2  # not true
                elif chance < 0.45:
                    held[n] = 0  # lost, or on their way back
                ask = Ask(held[n], spent[n], made.choice((0, 1, 1, 4)), made.choice((0, 1, 5, 50)))
                first, second = (
                    storage.budgets.lease(mine[n], "mail", ask, ttl)
                    for storage, mine in zip((one, two), pods, strict=True)
                )
                assert first is not None and second is not None
                assert first._replace(left=0) == second._replace(left=0), ask
                assert first.left == pytest.approx(second.left, abs=0.5)
                held[n] = first.kept + first.granted
            (here, mine), (there, others) = zip((one.budgets.all()[0], two.budgets.all()[0]), pods, strict=True)
            assert [here.leased.get(w.pod.id) for w in mine] == [there.leased.get(w.pod.id) for w in others]
            assert here.tokens == pytest.approx(there.tokens, abs=0.5)


def test_who_listens_hears_of_a_drain(pg_url: str) -> None:
    with open_storage(pg_url) as storage:
        listener = storage.listen()
        assert listener.wait(10) == {"*"}
        mail(storage)
        storage.budgets.drain("mail")
        assert listener.wait(10) == {"drain:mail"}
        listener.close()


def test_a_clock_that_was_set_back_neither_fills_a_bucket_nor_keeps_a_lease(
    storage: Storage, url: str, who: Incarnation, other: Incarnation
) -> None:
    mail(storage, 20, 1.0)
    lease(storage, who, want(10))
    pass_by(url, -3600.0)
    assert state(storage) == (10.0, {who.pod.id: 10})
    lease(storage, other, want(4, least=4))
    pass_by(url, LEASE)
    tokens, leased = state(storage)
    assert leased == {}
    assert 6.0 <= tokens <= 19.0


def test_another_limit_leaves_spent_what_is_spent(storage: Storage, who: Incarnation) -> None:
    mail(storage, 20)
    lease(storage, who, want(8))
    mail(storage, 50)
    assert state(storage) == (12.0, {who.pod.id: 8})
    mail(storage, 10)
    assert state(storage) == (2.0, {who.pod.id: 8})
    mail(storage, 5)
    assert state(storage) == (0.0, {who.pod.id: 8})
    lease(storage, who, Ask(0, 8, 0, 0))
    assert state(storage) == (0.0, {})


def test_settings_make_a_budget_and_change_it_only_when_they_change(storage: Storage) -> None:
    first, second, by_hand = Limit(20, SLOW), Limit(30, 2 * SLOW), Limit(5, 3 * SLOW)
    assert storage.budgets.declare("mail", first) is None
    assert storage.budgets.declare("mail", first) is None
    storage.budgets.set("mail", by_hand)
    assert storage.budgets.declare("mail", first) is None, "what an operator set stays"
    assert storage.budgets.all()[0][1:3] == by_hand
    assert storage.budgets.declare("mail", second) == by_hand
    assert storage.budgets.all()[0][1:3] == second
    assert storage.budgets.declare("mail", first, default=True) is None
    assert storage.budgets.all()[0][1:3] == second


def test_what_everybody_has_is_made_when_it_is_used_and_settings_come_before_it(storage: Storage) -> None:
    usual, own = Limit(50, 1.0), Limit(20, 2.0)
    assert storage.budgets.declare("slack", usual, default=True) is None
    assert storage.budgets.all() == [Budget("slack", 50, 1.0, 50.0, {})]
    assert storage.budgets.declare("slack", own) == usual
    assert storage.budgets.all() == [Budget("slack", 20, 2.0, 20.0, {})]


@pytest.mark.parametrize(
    ("scope", "limit", "words"),
    [
        ("a,b", Limit(1, 1.0), "comma"),
        ("mail", Limit(0, 1.0), "capacity is a whole number from 1 to 1000000000, not 0"),
        ("mail", Limit(1, 0.0), "refill is a number from 1e-06 to 1e"),
        ("mail", Limit(1, float("nan")), "refill is a number"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(storage: Storage, scope: str, limit: Limit, words: str) -> None:
    for verb in (storage.budgets.set, storage.budgets.declare):
        with pytest.raises(ForgeError, match=words) as caught:
            verb(scope, limit)
        assert isinstance(caught.value, UsageError) or scope == "a,b"
    assert storage.budgets.all() == []


def test_many_pods_at_once_get_each_token_once(storage: Storage, url: str) -> None:
    mail(storage, 64)
    pods = [storage.register(f"pod {n}", ["letters"], "north", n) for n in range(8)]
    got: list[int] = []

    def greedy(who: Incarnation) -> None:
        with open_storage(url) as mine:
            spent = 0
            while True:
                granted = lease(mine, who, want(3, spent=spent)).granted
                if not granted:
                    break
                spent += granted
            got.append(spent)

    threads = [threading.Thread(target=greedy, args=(who,)) for who in pods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sum(got) == 64
    assert state(storage)[0] == 0.0


def test_a_request_that_waited_for_another_sees_what_that_one_leased(pg_url: str) -> None:
    """Its statement must not go by what leases were when it began to wait."""
    with open_storage(pg_url) as storage, psycopg.connect(pg_url) as slow, open_storage(pg_url) as second:
        mail(storage, 20, 1e9)  # whatever was spent is there again at once, but for what is leased
        one, two = (storage.register(name, ["letters"], "north", 1) for name in "ab")
        slow.execute("select from forge.budget where scope = 'mail' for update")
        granted: list[int] = []
        thread = threading.Thread(target=lambda: granted.append(lease(second, two, want(20, least=20)).granted))
        thread.start()
        waits = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
        with psycopg.connect(pg_url, autocommit=True) as conn:
            while conn.execute(waits).fetchone() != (1,):
                pass
        slow.execute(
            "insert into forge.budget_lease values ('mail', %s, 15, 0, 1, 0, now(), now() + interval '1 hour')",
            (one.pod.id,),
        )
        slow.commit()
        thread.join(30)
        assert granted == [0]


def test_the_tables_hold_a_row_for_each_budget_and_each_lease_in_use(
    storage: Storage, url: str, who: Incarnation, other: Incarnation
) -> None:
    mail(storage, 20)
    lease(storage, who, want(1))
    pass_by(url, LEASE)
    for n in range(20):
        lease(storage, other, want(1, spent=n))
    assert sql(url, "select count(*), min(pod) from {budget_lease}") == [(1, other.pod.id)]
    if not is_sqlite(url):
        assert sql(url, "select count(*) from {budget}") == [(1,)]
