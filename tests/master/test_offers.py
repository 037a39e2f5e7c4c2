"""Real pods that offer to take jobs: those come at once, and none is lost or run twice whatever breaks in between."""

from __future__ import annotations

import collections
import signal
import threading
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
import pytest

from forge.job import Claim, Pod
from forge.master.queues.offers import Offers
from forge.storage.contract import Incarnation

from .conftest import Project, eventually

pytestmark = pytest.mark.impl_free

SETTINGS = "heartbeat = 0.2\nstale_after = 2.0\npoll_interval = 30.0\n[queues.default]\nmax_workers = {}\n"
TERMINATE = """select pg_terminate_backend(pid) from pg_stat_activity
                where datname = current_database() and application_name = 'forge' and pid <> pg_backend_pid()"""


def offers(project: Project) -> list[int]:
    with psycopg.connect(project.url) as conn:
        return [row[0] for row in conn.execute("select claim from forge.offer order by number")]


def ran(project: Project) -> collections.Counter[str]:
    return collections.Counter(words[1] for words in project.events("START"))


def test_a_lone_job_is_the_pods_before_it_asks(project_on_postgres: Project) -> None:
    project = project_on_postgres
    project.settings(SETTINGS.format(2))
    project.start()
    for n in range(5):
        eventually(lambda: offers(project))
        (token,) = offers(project)
        project.enqueue("slow", n, 0.0)
        eventually(lambda n=n: [str(n)] in [words[1:2] for words in project.events("END")])  # type: ignore[misc]
        with psycopg.connect(project.url) as conn:
            eventually(
                lambda token=token, conn=conn: conn.execute(  # type: ignore[misc]
                    "select 1 from forge.job_history where claim = %s and status = 'done'", [token]
                ).fetchone()
            )


def test_a_busy_pod_offers_nothing_and_a_stopped_one_leaves_nothing(project_on_postgres: Project) -> None:
    project = project_on_postgres
    project.settings(SETTINGS.format(1))
    pod = project.start()
    eventually(lambda: offers(project))
    project.enqueue("wait_for", "gate")
    eventually(lambda: project.events("START"))
    eventually(lambda: not offers(project))
    project.enqueue("slow", 1, 0.0)
    with psycopg.connect(project.url) as conn:
        assert conn.execute("select status::text from forge.job where claim is null").fetchall() == [("pending",)]
    (project.folder / "gate").touch()
    eventually(lambda: ran(project)["1"] == 1)
    eventually(lambda: offers(project))
    assert pod.stop() == 0
    assert offers(project) == []


def test_jobs_that_were_sent_to_a_lost_connection_run_once(project_on_postgres: Project) -> None:
    project = project_on_postgres
    project.settings(SETTINGS.format(2))
    pod = project.start()
    with psycopg.connect(project.url, autocommit=True) as conn:
        for n in range(6):
            eventually(lambda: offers(project))
            conn.execute(TERMINATE.encode())
            project.enqueue("slow", n, 0.0)
            eventually(lambda n=n: ran(project)[str(n)])  # type: ignore[misc]
        eventually(lambda: conn.execute("select count(*) from forge.job").fetchone() == (0,))
    assert ran(project) == collections.Counter(str(n) for n in range(6))
    assert pod.stop() == 0


def test_a_dead_pods_offers_keep_no_job_for_long(project_on_postgres: Project) -> None:
    project = project_on_postgres
    project.settings(SETTINGS.format(4).replace("30.0", "0.2"))  # jobs that were reaped are found by looking
    first = project.start()
    eventually(lambda: offers(project))
    first.process.send_signal(signal.SIGSTOP)
    try:
        for n in range(3):
            project.enqueue("slow", n, 0.0)
        project.start()
        eventually(lambda: sum(ran(project).values()) == 3)
    finally:
        first.process.send_signal(signal.SIGCONT)
    eventually(lambda: first.says("taken for dead"))
    eventually(lambda: len(offers(project)) == 2)  # both stand ready
    project.enqueue("slow", 3, 0.0)
    eventually(lambda: ran(project)["3"])
    assert ran(project) == collections.Counter("0123")


def test_under_load_each_job_runs_once(project_on_postgres: Project) -> None:
    project = project_on_postgres
    project.settings(SETTINGS.format(4))
    pods = [project.start(), project.start()]
    eventually(lambda: len(offers(project)) == 2)

    def store(first: int) -> None:
        for n in range(first, 400, 4):
            project.enqueue("slow", n, 0.0)

    threads = [threading.Thread(target=store, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    eventually(lambda: len(ran(project)) == 400, within=60)
    assert [pod.stop() for pod in pods] == [0, 0]
    assert ran(project) == collections.Counter(str(n) for n in range(400))


def test_a_job_may_come_before_the_word_that_its_offer_stands() -> None:
    """Else the pod would think for minutes that it stands, and make no other."""
    errands: list[Any] = []
    ran: list[Claim] = []
    claimer = SimpleNamespace(
        thread=SimpleNamespace(send=lambda _, then: errands.append(then)), pushed=ran.append, give_back=lambda _: None
    )
    who = Incarnation(Pod(7, "", "", 1, ("default",), datetime.now(UTC), datetime.now(UTC)))
    found = Offers(SimpleNamespace(offer=lambda *_: True), SimpleNamespace(who=who), claimer)  # type: ignore[arg-type]
    queue: Any = SimpleNamespace(name="default", idle=True)
    found.listening("here")
    for n in (1, 2):
        found.look(queue, 1.0, float(n))
        claim = Claim(0, 0, UUID(int=n), 7 << 32 | n, "default", "k", b"{}", 1, 1, 1, False, False)
        found.came([claim])
        errands.pop()(True, None)
        assert ran.pop() is claim
    assert not errands
