"""RESP, which clients of Faktory speak: commands and replies."""

from __future__ import annotations

from typing import Any

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1


def resp_simple(text: str) -> bytes:
    """RESP's reply of one line, `+text`; more than one line is a ValueError."""
    if "\r" in text or "\n" in text:
        raise ValueError("a simple reply is one line; send it as a bulk reply")
    return b"+%b\r\n" % text.encode()


def resp_error(code: str, message: str) -> bytes:
    """RESP's `-CODE message`. It always goes out: line ends become spaces, and what is not Unicode becomes `?`."""
    text = f"{code} {message}".replace("\r", " ").replace("\n", " ")
    return b"-%b\r\n" % text.encode(errors="replace")


def resp_int(number: int) -> bytes:
    """RESP's `:number`, of 64 bits."""
    if not _INT64_MIN <= number <= _INT64_MAX:
        raise ValueError(f"{number} has more than 64 bits")
    return b":%d\r\n" % number


def resp_bulk(data: bytes | None) -> bytes:
    """RESP's `$length` and the bytes, whatever they are; None is its null."""
    return b"$-1\r\n" if data is None else b"$%d\r\n%b\r\n" % (len(data), data)


def resp_commands(data: bytes, limit: int) -> tuple[list[tuple[bytes, bytes]], int]:
    """For a server: the lines `VERB rest` that are complete, and how many bytes they took. Keep the others, put what
    comes next behind them, and ask again. Lines end with LF or CRLF; one of more than `limit` bytes, its end included,
    is a ValueError, even before it has come whole."""
    lines = data.split(b"\n")
    rest = lines.pop()
    found = []
    for line in lines:
        if len(line) >= limit:
            raise ValueError(f"a line of more than {limit} bytes")
        verb, _, args = line.removesuffix(b"\r").partition(b" ")
        found.append((verb, args))
    if len(rest) >= limit:
        raise ValueError(f"a line of more than {limit} bytes")
    return found, len(data) - len(rest)


def resp_values(data: bytes, limit: int) -> tuple[list[tuple[str, Any]], int]:
    """For a client: the replies that are complete, and how many bytes they took; go on as with `resp_commands`.

    A reply is ("+", text), ("-", text), (":", int), ("$", bytes) or ("$", None). A ValueError (not UTF-8 is one too) is
    a peer that speaks something else, or a line or bulk of more than `limit` bytes. Faktory has no arrays."""
    found: list[tuple[str, Any]] = []
    at, total = 0, len(data)
    while (end := data.find(b"\n", at)) >= 0:
        if end - at >= limit:
            raise ValueError(f"a line of more than {limit} bytes")
        kind, line = data[at : at + 1], data[at + 1 : end - 1]
        if end - at < 2 or data[end - 1 : end] != b"\r":
            raise ValueError("a reply without CRLF")
        value: Any
        if kind in {b"+", b"-"}:
            value = line.decode()
        elif kind == b":":
            value = _number(line)
        elif kind != b"$":
            raise ValueError(f"a reply that starts with {kind!r}")
        elif line == b"-1":
            value = None
        else:
            size = _number(line)
            if line[:1] == b"-" or size > limit:
                raise ValueError(f"a bulk reply of {size} bytes; the limit is {limit}")
            start, end = end + 1, end + size + 2
            if end >= total:
                return found, at
            value = data[start : start + size]
            if data[end - 1 : end + 1] != b"\r\n":
                raise ValueError("a bulk reply that is not followed by CRLF")
        found.append((kind.decode(), value))
        at = end + 1
    if total - at >= limit:
        raise ValueError(f"a line of more than {limit} bytes")
    return found, at


def _number(text: bytes) -> int:
    """1 to 19 digits, with a minus or without: int() alone takes spaces, underscores and a plus as well."""
    digits = text.removeprefix(b"-")
    if not digits.isdigit() or len(digits) > 19 or not _INT64_MIN <= int(text) <= _INT64_MAX:
        raise ValueError(f"not a number of 64 bits: {text[:30]!r}")
    return int(text)
