"""`forge pods` and `forge run`: who leads, and one round of a service by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.errors import ExitCode
from forge.job import Done, Ending, Status
from forge.storage import Storage
from forge.storage.contract.leases import Holder
from tests.cli.conftest import Shell
from tests.storage.helpers import age, claimed, long_ago, plain_jobs

pytestmark = pytest.mark.impl_free


def test_pods_shows_who_leads_and_the_term(forge: Shell, url: str, storage: Storage) -> None:
    assert forge.ok("pods", "--database", url) == "no pods; forge-master starts one\n"
    assert forge("pods", "--database", url, "-o", "json").json == {"leader": None, "pods": []}
    one, two = (storage.register(name, ["mail", "web"], f"host-{name}", n) for n, name in enumerate("ab", 4711))
    term = storage.leases.acquire(Holder("k", two.pod.id, "host-b", 4712), 60.0).term
    head, first, second = (line.split() for line in forge.ok("pods", "--database", url).splitlines())
    assert head == ["pod", "host", "pid", "up", "heard", "of", "cpu", "memory", "leads", "queues"]
    assert first[:3] == [str(one.pod.id), "host-a", "4711"]
    assert first[-3:] == ["-", "mail,", "web"]
    assert second[-4:] == ["term", str(term), "mail,", "web"]
    found = forge("pods", "--database", url, "-o", "json").json
    assert [pod["term"] for pod in found["pods"]] == [None, term]
    assert (found["leader"]["pod"], found["leader"]["term"], found["leader"]["host"]) == (two.pod.id, term, "host-b")
    assert forge("top", "--database", url, "--interval", "0.1", "-o", "json").json["leader"] == found["leader"]
    assert f"term {term}" in forge.ok("top", "--database", url, "--interval", "0.1")


def test_services_are_listed_without_a_database(forge: Shell, folder: Path) -> None:
    lines = forge.ok("run", "--list").splitlines()
    assert lines[0].split()[:2] == ["service", "every"]
    assert "reaper" in lines[1] and "every pod" in lines[1] and "gone silent" in lines[1]
    assert "prune" in lines[2] and "the leader" in lines[2]
    assert forge.ok("run") == forge.ok("run", "--list")
    assert [(s["name"], s["leader_only"]) for s in forge("run", "-o", "json").json][:2] == [
        ("reaper", False),
        ("prune", True),
    ]
    assert list(folder.iterdir()) == []


def test_a_service_that_is_not_there_is_named_with_the_nearest(forge: Shell, url: str) -> None:
    said = forge.fails(ExitCode.USAGE, "run", "reper", "--database", url)
    assert said == "no service reper; did you mean reaper?   (forge run --list)"


def test_the_reaper_by_hand_takes_back_what_a_silent_pod_had(forge: Shell, url: str, storage: Storage) -> None:
    claimed(storage, storage.register("ada", ["letters"], "north", 1))
    assert forge.ok("run", "reaper", "--database", url) == "reaper: nothing to do\n"
    age(url, "pod", "beat_at", 100)
    assert forge.ok("run", "reaper", "--database", url) == "reaper: 1 pod had gone silent; 1 job taken back\n"
    assert forge("run", "reaper", "--database", url, "-o", "json").json == {
        "service": "reaper",
        "did": None,
        "term": None,
    }


def old_jobs(storage: Storage, url: str, n: int) -> None:
    who = storage.register("ada", ["letters"], "north", 1)
    storage.enqueue([long_ago(job) for job in plain_jobs(n)])
    storage.finalize([Ending(claim, Done()) for claim in storage.claim(who, "letters", n)])
    age(url, "job_history", "finished_at", 30 * 86_400)


def test_a_leaders_service_by_hand_takes_the_lease_for_its_round(forge: Shell, url: str, storage: Storage) -> None:
    old_jobs(storage, url, 3)
    found = forge("run", "prune", "--database", url, "-o", "json").json
    assert (found["service"], found["did"]) == ("prune", "3 ended jobs deleted")
    assert found["term"] >= 1
    assert storage.leases.leader() is None, "it was given back"
    assert forge.ok("run", "prune", "--database", url) == "prune: nothing to do\n"


def test_or_it_says_who_leads(forge: Shell, url: str, storage: Storage) -> None:
    old_jobs(storage, url, 3)
    pod = storage.register("bob", ["letters"], "south", 815).pod.id
    term = storage.leases.acquire(Holder("k", pod, "south", 815), 60.0).term
    said = forge.fails(ExitCode.LOCKED, "run", "prune", "--database", url)
    assert said.startswith(f"pod {pod} on south (pid 815) leads until ")
    assert said.endswith(f" UTC (term {term}), and prune is for the leader; it will see to it")
    assert storage.ended_counts() == {"letters": {Status.DONE: 3}}


def test_a_service_needs_a_database_that_is_there(forge: Shell, folder: Path) -> None:
    assert "run: forge db migrate" in forge.fails(ExitCode.SCHEMA, "run", "prune")
