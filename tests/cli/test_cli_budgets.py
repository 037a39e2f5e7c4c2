"""`forge budgets`, from the shell."""

from __future__ import annotations

from pathlib import Path

import pytest

from forge.errors import ExitCode
from forge.storage import open_storage
from forge.storage.contract.budgets import Ask

from .conftest import Shell

pytestmark = pytest.mark.impl_free


def test_a_budget_from_its_beginning_to_its_end(forge: Shell, folder: Path) -> None:
    assert forge.ok("budgets", "set", "mail", "--capacity", 20, "--refill", 0.001) == (
        "mail: capacity 20, 0.001 per second, 20 tokens\n"
    )
    with open_storage(f"sqlite:///{folder}/forge.db") as storage:
        for n in (3, 4):
            who = storage.register("ada", ["letters"], "north", n)
            storage.budgets.lease(who, "mail", Ask(0, 0, 1, n), ttl=3600)
    head, row = forge.ok("budgets").splitlines()
    assert head.split() == ["budget", "capacity", "per", "second", "tokens", "leased"]
    assert row.split() == ["mail", "20", "0.001", "13", "7", "by", "2", "pods"]
    (document,) = forge("budgets", "-o", "json").json
    assert document.pop("tokens") == pytest.approx(13, abs=0.5)
    assert document == {"scope": "mail", "capacity": 20, "refill_per_sec": 0.001, "leased": {"1": 3, "2": 4}}
    assert forge.ok("budgets", "set", "mail", "--capacity", 30) == "mail: capacity 30, 0.001 per second, 13 tokens\n"
    assert forge.ok("budgets", "drain", "mail") == "mail: capacity 30, 0.001 per second, 0 tokens\n"
    assert forge("budgets", "set", "mail", "--refill", 1e-6, "-o", "json").json["refill_per_sec"] == 1e-6


def test_without_budgets_it_says_where_they_come_from(forge: Shell, project: Path) -> None:
    forge.ok("queue", "set", "mail", "max_workers=1")
    assert forge.ok("budgets").startswith("no budgets; they appear with the first use")
    assert forge("budgets", "-o", "json").json == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("set", "new", "--capacity", 1), "new is a new budget; say its --refill too"),
        (("set", "new", "--refill", 1), "new is a new budget; say its --capacity too"),
        (("set", "new", "--capacity", 0, "--refill", 1), "capacity is a whole number from 1 to"),
        (("set", "a,b", "--capacity", 1, "--refill", 1), "has a comma in it"),
        (("drain", "mial"), "no budget mial; did you mean mail?   (forge budgets lists them)"),
    ],
)
def test_what_cannot_be_done_is_one_line(forge: Shell, project: Path, words: tuple[object, ...], said: str) -> None:
    forge.ok("budgets", "set", "mail", "--capacity", 1, "--refill", 1)
    refused = forge("budgets", *words)
    assert refused.code == ExitCode.USAGE
    assert said in refused.err
    assert refused.err.count("\n") == 1
