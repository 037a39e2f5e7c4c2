"""The line on which each key of a TOML document is written. tomllib tells no positions, so the text is read again.

Only for text that tomllib has accepted: nothing is checked here, which keeps it to what positions need.
"""

from __future__ import annotations

import re
import tomllib

__all__ = ["Key", "Positions"]

Key = tuple[str | int, ...]  # the tables a key stands in, then the key; a number is a place in a list

_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")
_BARE = re.compile(r"[\w-]+", re.ASCII)
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?""""{0,2}'  # one or two quotes may stand right before the three that end it
    r"|'''.*?''''{0,2}"
    r'|"(?:\\.|[^"\\])*"'
    r"|'[^']*'",
    re.DOTALL,
)
_PLAIN = re.compile(r"[^,\]}#\n]+")  # numbers, dates, true and false


class Positions:
    """Where the keys of one document are."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0
        self._line, self._counted = 1, 0  # the line of the character at `_counted`
        self._found: dict[Key, int] = {}
        self._document()

    def of(self, *key: str | int) -> int:
        """The line of a key; of the nearest table around it where it is not written; 1 where neither is."""
        while key:
            if key in self._found:
                return self._found[key]
            key = key[:-1]
        return 1

    def _document(self) -> None:
        table: Key = ()
        while self._skip() < len(self._text):
            if self._text[self._at] != "[":
                self._pair(table)
                continue
            while self._text[self._at] == "[":
                self._at += 1
                self._skip()
            table = self._key(())
            while self._at < len(self._text) and self._text[self._at] == "]":
                self._at += 1

    def _pair(self, table: Key) -> None:
        """`a.b = value`"""
        key = self._key(table)
        self._at += 1  # =
        self._skip()
        self._value(key)

    def _key(self, table: Key) -> Key:
        """A dotted key and the blanks behind it. What it implies is noted too, unless it was written before."""
        line = self._here()
        key = table
        while True:
            self._skip()
            if quoted := _STRING.match(self._text, self._at):
                part = tomllib.loads(f"k = {quoted[0]}")["k"]
                self._at = quoted.end()
            else:
                bare = _BARE.match(self._text, self._at)
                assert bare is not None
                part, self._at = bare[0], bare.end()
            key = (*key, part)
            self._found.setdefault(key, line)
            self._skip()
            if self._text[self._at] != ".":
                return key
            self._at += 1

    def _value(self, key: Key) -> None:
        match self._text[self._at]:
            case "[":
                self._list(key)
            case "{":
                self._at += 1
                while self._next() != "}":
                    self._pair(key)
                self._at += 1
            case _:
                found = _STRING.match(self._text, self._at) or _PLAIN.match(self._text, self._at)
                assert found is not None
                self._at = found.end()

    def _list(self, key: Key) -> None:
        self._at += 1
        index = 0
        while self._next() != "]":
            self._found.setdefault((*key, index), self._here())
            self._value((*key, index))
            index += 1
        self._at += 1

    def _next(self) -> str:
        """The first character of the next item, or the bracket that ends the items."""
        self._skip()
        if self._text[self._at] == ",":
            self._at += 1
            self._skip()
        return self._text[self._at]

    def _skip(self) -> int:
        """Past blanks, line ends and comments."""
        found = _BLANK.match(self._text, self._at)
        assert found is not None
        self._at = found.end()
        return self._at

    def _here(self) -> int:
        self._line += self._text.count("\n", self._counted, self._at)
        self._counted = self._at
        return self._line
