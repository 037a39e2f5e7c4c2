"""`forge schedules`, from the shell."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from .conftest import Shell

pytestmark = pytest.mark.impl_free


def test_a_schedule_from_its_beginning_to_its_end(forge: Shell, project: Path) -> None:
    said = forge.ok("schedules", "add", "nightly", "30 2 * * *", "tasks.add", 2, "b=3", "--timezone", "Europe/Berlin")
    assert re.fullmatch(r"nightly: next at \d{4}-\d\d-\d\d 0[23]:[03]0:00 Europe/Berlin\n", said)
    (row,) = forge("schedules", "-o", "json").json
    assert (row["name"], row["expression"], row["timezone"], row["source"]) == (
        "nightly",
        "30 2 * * *",
        "Europe/Berlin",
        "runtime",
    )
    assert (row["kind"], row["payload"]) == ("tasks.add", {"args": [2, 3], "kwargs": {}})
    assert (row["state"], row["last_fire_time"], row["catch_up"], row["max_attempts"]) == ("active", None, "one", 5)
    lines = forge.ok("schedules").splitlines()
    assert lines[0].split() == ["name", "expression", "zone", "task", "next", "last", "state"]
    assert re.fullmatch(r"nightly  30 2 \* \* \*  Europe/Berlin  tasks.add  \S+ \S+  in .*  -  active", lines[1]), lines
    assert forge.ok("schedules", "pause", "nightly") == "nightly: paused\n"
    assert forge.ok("schedules").splitlines()[1].endswith("-  paused")
    assert forge.ok("schedules", "resume", "nightly").startswith("nightly: next at ")
    ran = forge.ok("schedules", "run", "nightly").strip()
    assert forge("show", ran, "-o", "json").json["tags"] == ["cron:nightly"]
    assert forge.ok("schedules", "edit", "nightly", "--expression", "0 0 4 * * *", "--queue", "q").endswith(
        " 04:00:00 Europe/Berlin\n"
    )
    assert forge("schedules", "-o", "json").json[0]["queue"] == "q"
    assert forge.ok("schedules", "remove", "nightly") == "nightly: removed\n"
    assert forge.ok("schedules").startswith("no schedules; add one with `forge schedules add`")


def test_a_schedule_has_the_options_it_was_given(forge: Shell, project: Path) -> None:
    words = ("--jitter", 30, "--catch-up", "all", "--skip-if-running", "--priority", 2, "--max-attempts", 9)
    forge.ok("schedules", "add", "x", "@hourly", "raw", "--payload", "[1]", "--queue", "q", *words)
    (row,) = forge("schedules", "-o", "json").json
    names = ("payload", "queue", "jitter", "catch_up", "dedupe_key", "priority", "max_attempts", "expression")
    assert [row[name] for name in names] == [[1], "q", 30.0, "all", "cron:x", 2, 9, "@hourly"]
    first = forge("schedules", "run", "x", "-o", "json").json
    assert not first["deduped"]
    again = forge("schedules", "run", "x")
    assert (again.out.strip(), again.err) == (
        first["id"],
        "nothing was stored: that job of the schedule has not ended\n",
    )


def test_a_kind_of_another_programs_can_be_scheduled_where_no_modules_are_known(forge: Shell, folder: Path) -> None:
    forge.ok("schedules", "add", "x", "* * * * *", "theirs", "1")
    assert forge("schedules", "-o", "json").json[0]["payload"] == {"args": [1], "kwargs": {}}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["add", "x", "61 * * * *", "tasks.add", "1"], "schedule x: '61 * * * *' must be a cron expression ("),
        (["add", "x", "0 3 * * *", "tasks.add"], "tasks.add: missing a required argument: 'a'"),
        (["add", "x", "0 3 * * *", "tasks.ad"], "no task tasks.ad; did you mean tasks.add?"),
        (["add", "x", "0 3 * * *", "tasks.add", "1", "--timezone", "Berlin"], "schedule x: timezone 'Berlin' must be"),
        (["add", "x", "0 3 * * *", "tasks.add", "1", "--jitter", "-1"], "schedule x: jitter must be 0 to 86400"),
        (["add", "x", "0 3 * * *", "raw", "1", "--payload", "{}"], "give arguments or --payload, not both"),
        (["add", "x", "0 3 * * *", "raw", "--payload", "{"], "--payload is not JSON"),
        (["edit", "known"], "nothing to change; say --expression"),
        (["edit", "known", "--expression", "x"], "schedule known: 'x' must be 5 cron fields"),
        (["edit", "knwon", "--queue", "q"], "no schedule knwon; did you mean known?"),
        (["pause", "unheard-of"], "no schedule unheard-of; there are known   (forge schedules lists all)"),
        (["run", "unheard-of"], "no schedule unheard-of"),
        (["next", "0 3 * *"], "schedule '0 3 * *' must be 5 cron fields"),
        (["next", "0 3 * * *", "--from", "soon"], "argument --from: invalid fromisoformat value: 'soon'"),
        (["psue"], "no command psue; did you mean pause?"),
    ],
)
def test_mistakes_are_one_line(forge: Shell, project: Path, words: list[str], said: str) -> None:
    forge.ok("schedules", "add", "known", "0 3 * * *", "tasks.add", 1)
    assert said in forge.fails(2, "schedules", *words)


def test_what_is_coming_can_be_looked_at(forge: Shell, folder: Path) -> None:
    words = ("schedules", "next", "30 2 * * *", "--timezone", "Europe/Berlin", "--from", "2026-10-24T12:00", "-n", 2)
    assert forge.ok(*words).splitlines() == [
        "Europe/Berlin                  UTC",
        "Sun 2026-10-25 02:30:00 +0200  2026-10-25 00:30:00",
        "Mon 2026-10-26 02:30:00 +0100  2026-10-26 01:30:00",
    ]
    assert forge(*words, "-o", "json").json == ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]
    assert len(forge.ok("schedules", "next", "@daily").splitlines()) == 6
    assert not (folder / "forge.db").exists()
