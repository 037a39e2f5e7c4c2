"""The fast path's bench knows every function, and the source states what each one gains."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import fastpath as bench
from forge import _fastpath_py

pytestmark = pytest.mark.impl_free

SCRIPT = Path(bench.__file__)


def test_the_bench_measures_every_function_and_ends_with_json() -> None:
    # How it ends depends on the figures, and those are nothing to test.
    run = subprocess.run(
        [sys.executable, SCRIPT, "--json", "--jobs", "20", "--rounds", "1"], capture_output=True, text=True, check=False
    )
    found = json.loads(run.stdout.splitlines()[-1])
    assert list(found["gains"]) == bench.public()
    assert found["least"] == min(found["gains"].values()) > 0
    assert (found["lost"], found["duplicates"], found["backend"], found["impl"]) == (0, 0, None, "c")
    assert found["jobs"] == 20 * len(found["gains"])
    assert {"seconds", "jobs_per_s", "cores", "versions", "commit"} <= set(found)


def test_a_function_without_input_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(bench.CASES, "uuids")
    with pytest.raises(SystemExit, match=r"no input in bench/fastpath\.py: uuids"):
        bench.public()


def test_answers_that_differ_are_counted(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(_fastpath_py, "resp_int", lambda number: b":1\r\n")
    monkeypatch.setattr(sys, "argv", ["fastpath.py", "--json", "--jobs", "3", "--rounds", "1"])
    assert bench.main() == 1
    out, error = capsys.readouterr()
    found = json.loads(out)
    assert (found["lost"], found["duplicates"]) == (2, 2)  # 0 and 2
    assert "4 answers differ" in error


def test_each_functions_comment_states_what_it_gains() -> None:
    stated = bench.stated(bench.source())
    assert list(stated) == bench.public()
    assert {name for name, gain in stated.items() if gain < bench.WORTH} == set()


def test_a_comment_without_a_figure_is_seen() -> None:
    source = (
        "# 4.1x the twin (bench/fastpath.py).\ndef a(x):\n    pass\n\n\ndef b(x):\n    pass\n\n\n# fast\ndef c(x):\n"
    )
    assert bench.stated(source) == {"a": 4.1, "b": 0, "c": 0}
