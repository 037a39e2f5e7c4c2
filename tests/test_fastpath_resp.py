"""RESP as Faktory speaks it: what is written, read and refused. One suite over both implementations."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_fastpath import BOTH, patient
from tests.test_fastpath_differential import int64, lines, one_line, replies, words

# Both are compared here, whichever is chosen.
pytestmark = pytest.mark.impl_free


@pytest.fixture(params=BOTH, ids=["c", "py"])
def impl(request: pytest.FixtureRequest) -> Any:
    return request.param


def test_replies_are_written_as_faktory_writes_them(impl: Any) -> None:
    assert impl.resp_simple("OK") == b"+OK\r\n"
    assert impl.resp_simple('HI {"v":2}') == b'+HI {"v":2}\r\n'
    assert impl.resp_simple("é漢🔥") == "+é漢🔥\r\n".encode()
    assert impl.resp_error("ERR", "unknown command X") == b"-ERR unknown command X\r\n"
    assert impl.resp_error("NOTUNIQUE", "é") == "-NOTUNIQUE é\r\n".encode()
    assert impl.resp_int(-(2**63)) == b":-9223372036854775808\r\n"
    assert impl.resp_bulk(b'{"state":"quiet"}') == b'$17\r\n{"state":"quiet"}\r\n'
    assert impl.resp_bulk(b"") == b"$0\r\n\r\n"
    assert impl.resp_bulk(b"a\r\nb\0") == b"$5\r\na\r\nb\0\r\n"
    assert impl.resp_bulk(None) == b"$-1\r\n"


@pytest.mark.parametrize("bad", ["a\nb", "a\r", "\r\n+OK", "é\n"])
def test_no_text_can_smuggle_in_a_reply_of_its_own(impl: Any, bad: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        impl.resp_simple(bad)
    for line in (impl.resp_error("ERR", bad), impl.resp_error(bad, "x")):
        assert line.count(b"\r") == line.count(b"\n") == 1
        assert line.endswith(b"\r\n")


def test_an_error_goes_out_whatever_it_says(impl: Any) -> None:
    assert impl.resp_error("ERR", "no \ud800 job\r\nhere") == b"-ERR no ? job  here\r\n"
    with pytest.raises(ValueError, match="more than 64 bits"):
        impl.resp_int(2**63)


def test_commands_are_a_verb_and_the_rest_of_their_line(impl: Any) -> None:
    data = b'HELLO {"v":2}\r\nFETCH a  b\nEND\r\n\r\n x\r\r\nPUSH {"jid'
    found = [(b"HELLO", b'{"v":2}'), (b"FETCH", b"a  b"), (b"END", b""), (b"", b""), (b"", b"x\r")]
    assert impl.resp_commands(data, 100) == (found, len(data) - 10)
    assert impl.resp_commands(b"", 100) == ([], 0)


@pytest.mark.parametrize("data", [b"12345678\r\n", b"123456789\n", b"12345678\r", b"1234567890", b"A\n1234567890"])
def test_a_command_past_the_limit_is_refused_before_it_is_whole(impl: Any, data: bytes) -> None:
    assert impl.resp_commands(data, 11)
    assert impl.resp_commands(b"1234567\r\n" * 3, 9)[1] == 27
    with pytest.raises(ValueError, match="a line of more than 9 bytes"):
        impl.resp_commands(data, 9)


def test_replies_are_read_with_their_kind(impl: Any) -> None:
    data = b"+OK\r\n-ERR no\r\n:-7\r\n$4\r\na\r\nb\r\n$0\r\n\r\n$-1\r\n+\r\n+\xc3\xa9\r\n"
    found = [("+", "OK"), ("-", "ERR no"), (":", -7), ("$", b"a\r\nb"), ("$", b""), ("$", None), ("+", ""), ("+", "é")]
    for rest in (b"", b"+", b"+OK", b"+OK\r", b"$", b"$3\r\n", b"$3\r\nabc", b"$3\r\nabc\r", b":1\r"):
        assert impl.resp_values(data + rest, 100) == (found, len(data))


@pytest.mark.parametrize(
    "data",
    [
        b"OK\r\n",
        b"\r\n",
        b"\n",
        b"+OK\n",
        b"*1\r\n+OK\r\n",
        b":\r\n",
        b":-\r\n",
        b":+1\r\n",
        b": 1\r\n",
        b":1_0\r\n",
        b":9223372036854775808\r\n",
        b":-9223372036854775809\r\n",
        b":00000000000000000001\r\n",
        b"$\r\n",
        b"$-0\r\n",
        b"$-2\r\n",
        b"$-01\r\n",
        b"$1x\r\n",
        b"$3\r\nabcd\r\n",
        b"$3\r\nab\r\n\r\n",
        b"$31\r\n",
        b"$9223372036854775807\r\n",
        b"+\xff\r\n",
        b"-\xc3\r\n",
        b"+" + b"x" * 30,
        b"+" + b"x" * 28 + b"\r\n",
    ],
)
def test_what_is_no_reply_or_too_long_is_a_value_error(impl: Any, data: bytes) -> None:
    with pytest.raises(ValueError):
        impl.resp_values(b"+OK\r\n" + data, 30)


@patient
@given(st.lists(one_line.map(lambda t: ("+", t)) | int64.map(lambda n: (":", n)) | st.binary().map(lambda b: ("$", b))))
def test_what_is_written_can_be_read(values: list[tuple[str, Any]]) -> None:
    writers = {"+": "resp_simple", ":": "resp_int", "$": "resp_bulk"}
    for impl in BOTH:
        data = b"".join(getattr(impl, writers[kind])(value) for kind, value in values)
        assert impl.resp_values(data, 10_000) == (values, len(data))


@patient
@given(words, words)
def test_an_error_that_is_written_can_be_read(code: str, message: str) -> None:
    for impl in BOTH:
        ((kind, said),), _ = impl.resp_values(impl.resp_error(code, message), 10_000)
        assert (kind, said) == ("-", f"{code} {message}".replace("\r", " ").replace("\n", " "))


def in_pieces(read: Any, data: bytes, sizes: list[int], limit: int) -> tuple[list[Any], bytes] | None:
    """All that is read when `data` comes in such pieces, and what is left; None: it was refused."""
    found, rest = [], b""
    for size in [*sizes, len(data)]:
        piece, data = data[:size], data[size:]
        try:
            more, used = read(rest + piece, limit)
        except ValueError:
            return None
        found += more
        rest = (rest + piece)[used:]
    return found, rest


@patient
@given(
    st.lists(replies | lines, max_size=4).map(b"".join), st.lists(st.integers(0, 6)), st.integers(0, 40) | st.just(999)
)
def test_it_does_not_matter_in_which_pieces_bytes_come(data: bytes, sizes: list[int], limit: int) -> None:
    for impl in BOTH:
        for read in (impl.resp_commands, impl.resp_values):
            assert in_pieces(read, data, sizes, limit) == in_pieces(read, data, [], limit)
