"""The figures in the documents are those of bench/results.json, and of one commit."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bench.all import RUNS
from bench.figures import BLOCK, MISSING, PAGES, filled, significant, templates, written
from bench.results import Results, load

pytestmark = pytest.mark.impl_free

# What only a measurement can say: rates, times of parts of a job, and shares of something else with a point in them.
_MEASURED = re.compile(
    r"([\d.,]*\d) (?:(?:jobs|rows|statements)(?:/s| a second)|µs a job|times as|MB more)"
    r"|(\d\.\d+) (?:of (?:the|a|raw)\b|ms\b)"
)
RESULTS = load()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_has_the_figures_that_were_measured(page: Path) -> None:
    text = page.read_text("utf-8")
    assert text == written(RESULTS, text), "make figures writes them"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_measured_figure_is_typed_by_hand(page: Path) -> None:
    text = BLOCK.sub("", page.read_text("utf-8"))
    asked = {number for run in RUNS for number in re.findall(r"[\d.]+", run.short)}
    typed = [match[0] for match in _MEASURED.finditer(text) if (match[1] or match[2]).replace(",", "") not in asked]
    assert not typed, "put it into bench/figures.md, or say it in words"


def test_every_part_is_on_some_page_and_every_block_has_its_part() -> None:
    asked = {block[2] for page in PAGES for block in BLOCK.finditer(page.read_text("utf-8"))}
    assert asked == set(templates())


def test_all_figures_are_of_one_commit_and_none_was_found_wrong() -> None:
    assert {found.get("commit") for found in RESULTS.runs} == {RESULTS.about["commit"]}
    assert not [found for found in RESULTS.runs if "error" in found]
    assert RESULTS.about["cores"] and RESULTS.about["date"]


def test_figures_have_the_digits_that_mean_something() -> None:
    numbers = (86_123, 1_935, 99.7, 26.18, 2.345, 0.353, 0.0999, 0)
    assert [significant(each) for each in numbers] == ["86,000", "1,900", "100", "26", "2.3", "0.35", "0.10", "0"]


def test_a_place_is_filled_from_the_run_and_key_it_names() -> None:
    run = {"scenario": "scaling", "arguments": "--backend sqlite", "ratio": 0.5, "by": {"8": 2907}, "versions": {}}
    results = Results({"commit": "abc"}, [run])
    assert filled(results, "{scaling:sqlite.by/8|rate} {scaling:sqlite.ratio|ratio}") == "2,900 0.50"
    assert (
        filled(results, "{about.commit|word} {scaling.ratio|ratio} {scaling:sqlite.none|ms}")
        == f"abc {MISSING} {MISSING}"
    )


def test_an_aim_that_was_missed_is_said_so() -> None:
    run = {"scenario": "drain", "arguments": "", "ratio_to_raw": 0.5, "versions": {}}
    words = "{drain.ratio_to_raw|aim} {drain.ratio_native|aim}"
    assert filled(Results({}, [run]), words) == "≥ 0.75 (missed) ≥ 1.3"
