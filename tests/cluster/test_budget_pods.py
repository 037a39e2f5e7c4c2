"""Five real masters spend one budget; two of them are killed meanwhile."""

from __future__ import annotations

import signal
import time

import psycopg
import pytest

from forge.storage.contract.budgets import Ask
from tests.master.conftest import TASKS, Pod, Project, eventually

from .budget_rig import Spent, worst

pytestmark = pytest.mark.impl_free

CAPACITY, RATE = 30, 100.0
SPAN = 2.5  # seconds

SPEND = '''
@app.handler("spend")
def spend(ctx, payload):
    """Take all there is until told to stop. A token was granted some time between the two times that are noted."""
    while not os.path.exists(os.path.join(os.path.dirname(LEDGER), "stop")):
        before = time.monotonic()
        if ctx.rate_limit.acquire("calls"):
            note("SPENT", before, time.monotonic(), payload)
        else:
            note("NOTHING", payload)
            time.sleep(0.01)


@app.handler("drain")
def drain(ctx, payload):
    ctx.rate_limit.drain("calls")
'''


def spenders(project: Project, pods: int, limit: str) -> list[Pod]:
    """Pods of one worker each, every one with a job that spends what it can."""
    (project.folder / "tasks.py").write_text(TASKS + SPEND)
    project.settings(f"[limits.calls]\n{limit}\n[queues.other]\n")
    found = []
    for n in range(pods):
        project.env["FORGE_QUEUES"] = f"q{n}"
        found.append(project.launch())
        project.app.enqueue("spend", n, queue=f"q{n}")
    return [pod.ready() for pod in found]


def record(project: Project) -> list[tuple[float, float, int]]:
    """From when to when a token was asked for and granted, and by which pod."""
    return [(float(begin), float(end), int(pod)) for _, begin, end, pod in project.events("SPENT")]


def spent(project: Project) -> list[Spent]:
    return [(begin, end, 1) for begin, end, _ in record(project)]


def test_never_above_budget_in_any_span_with_kills_and_then_the_full_rate_again(project: Project) -> None:
    pods = spenders(project, 5, f"capacity = {CAPACITY}\nrefill_per_sec = {RATE}")
    eventually(lambda: all(sum(pod == n for _, _, pod in record(project)) > 5 for n in range(5)))
    for victim in pods[:2]:
        victim.process.kill()
    killed = time.monotonic()

    def full_rate() -> bool:
        """Within some seconds since, three pods have used nine tenths of what all of them may."""
        ends = sorted(end for begin, end, _ in record(project) if begin > killed)
        few = round(0.9 * RATE * SPAN)
        return any(ends[n + few - 1] - ends[n] <= SPAN for n in range(len(ends) - few + 1))

    eventually(full_rate, within=60)
    (project.folder / "stop").touch()
    eventually(lambda: len(project.app.storage.counts()) == 2, within=60)  # those of the killed pods are left
    last = [pod for begin, _, pod in record(project) if begin > killed]
    assert set(last) == {2, 3, 4}
    assert worst(spent(project), RATE) <= CAPACITY

    def whole() -> bool:
        (budget,) = project.app.storage.budgets.all()
        return (budget.tokens, budget.leased) == (CAPACITY, {})

    eventually(whole)  # what the killed ones had leased is there again
    for pod in pods[2:]:
        assert pod.stop() == 0


def test_a_drain_by_one_pod_leaves_nothing_to_the_others(project: Project) -> None:
    spenders(project, 2, "capacity = 1000000\nrefill_per_sec = 0.001")
    project.env["FORGE_QUEUES"] = "other"
    project.start()
    eventually(lambda: {pod for _, _, pod in record(project)} == {0, 1})
    assert project.events("NOTHING") == []
    project.app.enqueue("drain", None, queue="other")
    eventually(lambda: {pod for _, pod in project.events("NOTHING")} == {"0", "1"})
    (project.folder / "stop").touch()
    assert len(record(project)) < 1_000_000
    assert project.app.storage.budgets.all()[0].tokens < 1


def test_a_pod_that_was_stopped_for_longer_than_its_lease_has_nothing_to_spend_when_it_wakes(project: Project) -> None:
    (pod,) = spenders(project, 1, "capacity = 1000000\nrefill_per_sec = 0.001")
    budgets = project.app.storage.budgets
    with psycopg.connect(project.url, autocommit=True) as conn:

        def stopped_with_tokens() -> bool:
            pod.process.send_signal(signal.SIGSTOP)
            tokens, told = conn.execute("select tokens, spent from forge.budget_lease").fetchone() or (0, 0)
            held = tokens - (len(record(project)) - told)
            if held < 20:
                pod.process.send_signal(signal.SIGCONT)
            return bool(held >= 20)

        eventually(stopped_with_tokens)
    eventually(lambda: not budgets.all()[0].leased)
    other = project.app.storage.register("another", [], "elsewhere", 1)
    left = int(budgets.all()[0].tokens)
    grant = budgets.lease(other, "calls", Ask(0, 0, left, left), ttl=3600)
    assert grant is not None and grant.granted == left  # now nobody else may have any
    before = len(record(project))
    pod.process.send_signal(signal.SIGCONT)
    eventually(lambda: project.events("NOTHING"))
    assert len(record(project)) <= before + 1  # one may have been granted already, and not been told
