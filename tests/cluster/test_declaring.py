"""Declared schedules: each project's own, whoever leads and whoever else is on the database."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from forge.cluster import schedules
from forge.cluster.declaring import Declare
from forge.config import Config
from forge.errors import UsageError
from forge.storage import Storage
from forge.storage.contract.schedules import NewSchedule
from tests.master.conftest import Project, eventually, making

pytestmark = pytest.mark.impl_free


def new(name: str, source: Any = "config", **more: Any) -> NewSchedule:
    return NewSchedule(name=name, expression="0 3 * * *", kind="tick", source=source, **more)


class Pod:
    """One that declares what the test says."""

    def __init__(self, storage: Storage, project: str, *declared: NewSchedule) -> None:
        self.project, self.declared = project, declared
        self._service = Declare(storage, lambda: self.project, self._wanted)

    def _wanted(self) -> Sequence[NewSchedule]:
        return self.declared

    def look(self) -> str | None:
        return self._service.run_once(None)


def owners(storage: Storage) -> dict[str, str]:
    return {each.name: each.project for each in storage.schedules.all()}


def test_declared_schedules_are_stored_once_and_when_others_are_declared(storage: Storage) -> None:
    pod = Pod(storage, "shop", new("a"), new("b", "code"))
    assert pod.look() == "added a, b"
    pod.declared = (new("b", "code", queue="q"), new("c"))
    schedules.put(storage, new("c", "runtime"))
    assert pod.look() == "changed b, c, removed a, declared now, no longer set at run time: c"
    assert pod.look() is None
    storage.schedules.remove("c", declared=True)
    assert pod.look() is None, "nothing has changed that it declares"


def test_a_project_removes_only_what_it_has_declared_itself(storage: Storage) -> None:
    shop, bank = Pod(storage, "shop", new("orders"), new("stock", "code")), Pod(storage, "bank", new("interest"))
    assert (shop.look(), bank.look()) == ("added orders, stock", "added interest")
    schedules.put(storage, new("by hand", "runtime"))
    assert Pod(storage, "shop", new("orders, renamed")).look() == "added orders, renamed, removed orders, stock"
    assert owners(storage) == {"by hand": "", "interest": "bank", "orders, renamed": "shop"}
    assert Pod(storage, "nobody").look() is None
    bank.declared = ()
    assert bank.look() == "removed interest"


def test_an_old_pod_of_a_rolling_deploy_does_not_bring_back_what_the_new_one_has_renamed(storage: Storage) -> None:
    old, fresh = Pod(storage, "shop", new("old name")), Pod(storage, "shop", new("new name"))
    assert old.look() == "added old name"
    assert fresh.look() == "added new name, removed old name"
    assert (old.look(), fresh.look()) == (None, None)
    assert owners(storage) == {"new name": "shop"}


def test_a_name_that_two_projects_declare_is_told_of(storage: Storage) -> None:
    Pod(storage, "shop", new("nightly")).look()
    said = Pod(storage, "bank", new("nightly", queue="money")).look()
    assert said == "changed nightly, taken over, though another project declares them too: nightly"
    assert owners(storage) == {"nightly": "bank"}
    assert Pod(storage, "shop").look() is None


def test_what_a_project_that_is_no_more_has_left_behind_can_be_removed(storage: Storage) -> None:
    Pod(storage, "shop", new("orders")).look()
    with pytest.raises(UsageError, match=r"orders is in forge.toml of project shop; .* --declared removes it until"):
        schedules.remove(storage, "orders")
    schedules.remove(storage, "orders", declared=True)
    assert owners(storage) == {}


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"modules": ("shop.tasks", "billing")}, "shop"),
        ({"modules": ("tasks",), "project": "bank"}, "bank"),
        ({}, ""),
    ],
)
def test_a_project_is_named_after_its_first_package_unless_it_says_otherwise(
    settings: dict[str, Any], name: str
) -> None:
    assert Config(**settings).project_name == name


# -- real masters --------------------------------------------------------------------------------------------------


def test_two_projects_on_one_database_keep_their_schedules_whoever_leads(tmp_path: Path, pg_url: str) -> None:
    for name in ("shop", "bank"):
        (tmp_path / name).mkdir()
    for shop in making(tmp_path / "shop", pg_url):
        for bank in making(tmp_path / "bank", pg_url):
            _share_a_database(shop, bank)


def _share_a_database(shop: Project, bank: Project) -> None:
    def say(project: Project, *names: str) -> None:
        crons = "".join(f'[cron.{name}]\nkind = "raw.kind"\nschedule = "* * * * * *"\n' for name in names)
        project.settings(f'project = "{project.folder.name}"\nleader_ttl = 1.0\n[queues.default]\n{crons}')

    say(shop, "orders", "stock")
    say(bank, "interest")
    first, second = shop.start(), bank.start()
    stored = shop.app.storage
    eventually(lambda: owners(stored) == {"interest": "bank", "orders": "shop", "stock": "shop"})
    eventually(lambda: all(stored.schedules.fire_times(name) for name in owners(stored)))
    say(shop, "orders", "shelves")
    renamed = shop.start()  # a deploy: the new pod comes before the old one goes
    after = {"interest": "bank", "orders": "shop", "shelves": "shop"}
    eventually(lambda: owners(stored) == after)
    for pod in (first, renamed):
        assert pod.stop() == 0
    eventually(lambda: second.says("this pod leads"))
    fired = len(stored.schedules.fire_times("shelves", 1000))
    eventually(lambda: len(stored.schedules.fire_times("shelves", 1000)) > fired)
    assert owners(stored) == after, "a leader of another project fires them all, and removes none"
