"""What the zygote tells the master of schedules: those of forge.toml and of the modules, ready to be stored."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from forge import config
from forge.errors import ConfigError
from forge.storage.contract.schedules import NewSchedule
from forge.worker.modules import known_tasks
from forge.worker.schedules import declared

pytestmark = pytest.mark.impl_free

TASKS = """
from forge import Forge
app = Forge("sqlite:///forge.db")

@app.task(queue="slow", max_attempts=3, keep_result=False)
def report(region: str, deep: bool = False) -> None: ...

@app.task(cron="0 4 * * *")
def tidy() -> None: ...

@app.handler("raw", queue="raw")
def raw(ctx, payload): ...

app.schedule("weekly", "@weekly", report, args=["eu"])
"""

Declared = Callable[[str], tuple[dict[str, NewSchedule], list[str]]]


@pytest.fixture
def look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Declared:
    """The schedules of a project with this in its forge.toml."""
    import sys

    name = f"tasks_{abs(hash(tmp_path))}"
    (tmp_path / f"{name}.py").write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def looking(toml: str) -> tuple[dict[str, NewSchedule], list[str]]:
        (tmp_path / "forge.toml").write_text(f'modules = ["{name}"]\n{toml.replace("tasks.", f"{name}.")}')
        settings = config.load(tmp_path / "forge.toml")
        found, remarks = declared(settings, known_tasks(settings, flags={}))
        assert [new.name for new in found] == sorted(new.name for new in found)
        assert [NewSchedule.of_message(new.as_message()) for new in found] == found
        return {new.name.replace(name, "tasks"): new for new in found}, [
            each.replace(name, "tasks") for each in remarks
        ]

    return looking


def test_those_of_code_and_of_the_configuration_are_found(look: Declared) -> None:
    found, remarks = look("""
        [cron.nightly]
        task = "tasks.report"
        payload = { region = "eu", deep = true }
        schedule = "0 3 * * *"
        timezone = "Europe/Berlin"
        catch_up = "all"
        jitter = 30
        skip_if_running = true
        [cron.often]
        kind = "raw"
        payload = [1]
        schedule = "*/10 * * * * *"
        queue = "fast"
    """)
    assert remarks == []
    assert set(found) == {"nightly", "often", "tasks.tidy", "weekly"}
    nightly = found["nightly"]
    assert (nightly.source, nightly.timezone, nightly.catch_up, nightly.jitter) == (
        "config",
        "Europe/Berlin",
        "all",
        30,
    )
    assert (nightly.payload, nightly.dedupe_key) == (b'{"args":["eu",true],"kwargs":{}}', "cron:nightly")
    assert (nightly.queue, nightly.max_attempts, nightly.keep_result) == ("slow", 3, None)
    often = found["often"]
    assert (often.kind, often.payload, often.queue, often.expression) == ("raw", b"[1]", "fast", "*/10 * * * * *")
    assert (found["weekly"].source, found["weekly"].payload) == ("code", b'{"args":["eu"],"kwargs":{}}')


def test_the_configuration_wins_over_code_and_it_is_said(look: Declared) -> None:
    found, remarks = look('[cron.weekly]\nkind = "raw"\nschedule = "@monthly"\n')
    assert (found["weekly"].kind, found["weekly"].source, found["weekly"].payload) == ("raw", "config", b"null")
    assert remarks == ["schedule weekly is declared in code and as [cron.weekly]; the latter counts"]


def test_a_task_that_only_other_pods_know_is_scheduled_and_it_is_said(look: Declared) -> None:
    found, remarks = look('[cron.x]\ntask = "tasks.reprot"\nargs = [1]\nschedule = "@daily"\n')
    assert (found["x"].queue, found["x"].payload) == ("default", b'{"args":[1],"kwargs":{}}')
    assert remarks == ["cron.x: no task tasks.reprot in the modules; did you mean tasks.report?"]
    _, remarks = look('[cron.x]\ntask = "quite.another"\nschedule = "@daily"\n')
    assert remarks == ["cron.x: no task quite.another in the modules; it is enqueued all the same"]
    assert look('[cron.x]\nkind = "of.others"\nschedule = "@daily"\n')[1] == []


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ('task = "tasks.report"', "cron.x: .*missing a required argument: 'region'"),
        ('task = "tasks.report"\npayload = { region = 1, dep = 1 }', "cron.x: .*dep"),
        ('task = "tasks.report"\npayload = [1]', "cron.x: the payload of a task is a table of its named arguments"),
    ],
)
def test_arguments_that_the_task_does_not_take_are_a_mistake_of_the_configuration(
    look: Declared, about: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        look(f'[cron.x]\nschedule = "@daily"\n{about}\n')


def test_two_apps_cannot_declare_one_name(look: Any, tmp_path: Path) -> None:
    (tmp_path / "another_app_of_this_test.py").write_text(
        'from forge import Forge\nother = Forge("sqlite:///x.db")\nother.schedule("weekly", "@daily", "k")\n'
    )
    name = next(tmp_path.glob("tasks_*.py")).stem
    (tmp_path / "forge.toml").write_text(f'modules = ["{name}", "another_app_of_this_test"]\n')
    settings = config.load(tmp_path / "forge.toml")
    with pytest.raises(ConfigError, match="two apps declare the schedule weekly; rename one"):
        declared(settings, known_tasks(settings, flags={}))
