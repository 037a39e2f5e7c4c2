"""Output as lines of a log: whole, cut, or counted."""

from __future__ import annotations

import pytest

from forge.printing import MAX_PRINTED, Allowance, Cutter

pytestmark = pytest.mark.impl_free


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def cutter(rate: float = 10, burst: float = 1000, clock: Clock | None = None) -> Cutter:
    return Cutter(Allowance(rate, burst, clock or Clock()))


def test_lines_come_whole_however_their_bytes_come() -> None:
    cut = cutter()
    assert cut.feed(b"one\ntw") == ["one"]
    assert cut
    assert cut.feed(b"o") == []
    assert cut.feed(b"\r\n\n  three \n") == ["two", "  three"]
    assert not cut


def test_what_has_no_end_comes_at_the_end() -> None:
    cut = cutter()
    assert cut.feed("für".encode() + b"\xff") == []
    assert cut.finish() == ["für\\xff"]
    assert cut.finish() == []


def test_of_a_long_line_the_beginning_is_kept_and_the_rest_counted() -> None:
    cut = cutter()
    for _ in range(10):
        assert cut.feed(b"x" * 1000) == []
    assert cut.feed(b"y\nz\n") == ["x" * MAX_PRINTED + "… (2,001 more bytes)", "z"]


def test_past_the_allowance_lines_are_counted_for_a_second_and_told_of_then() -> None:
    clock = Clock()
    cut = cutter(rate=2, burst=3, clock=clock)
    assert cut.feed(b"1\n2\n3\n4\n5\n6\nbegin") == ["1", "2", "3"]
    clock.now += 0.6
    assert cut.feed(b"ning\n8\n") == []
    clock.now += 0.6
    assert cut.feed(b"9\n") == ["… 5 more lines, too many to log", "9"]


def test_how_many_were_left_out_is_told_at_the_end_too() -> None:
    cut = cutter(burst=1)
    assert cut.feed(b"1\n2\n") == ["1"]
    assert cut.finish() == ["… 1 more line, too many to log"]


def test_empty_lines_are_not_logged_and_not_free() -> None:
    cut = cutter(burst=10)
    assert cut.feed(b"\n" * 30) == []
    assert cut.finish() == ["… 20 more lines, too many to log"]


def test_a_long_line_counts_as_several() -> None:
    cut = cutter(burst=10)
    assert len(cut.feed(b"x" * 4999 + b"\n" + b"y" * 4999 + b"\nz\n")) == 2
    assert cut.finish() == ["… 1 more line, too many to log"]
