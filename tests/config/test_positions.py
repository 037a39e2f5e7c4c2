"""An error names the line of the very key, however the file is written."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forge.config.positions import Positions

pytestmark = pytest.mark.impl_free

DOCUMENT = '''\
# [not.a.table]
a = """
b = 1
[c]""" # x = 1
"quoted.key" = 'it''s'
d.e.f = 1

[queues."odd name"]
max_workers = 1
list = [
    "x", # comment ]
    { y = 1,  z = { deep = [1, 2] } },
]
[ queues . mail ]   # [other]
when = 1979-05-27 07:32:00
text = ''\'
[fake]
key = 1\'''
last = "a \\" [b] = # c"
[[things]]
one = 1
'''.replace("'it''s'", '"its"')


@pytest.mark.parametrize(
    ("key", "line"),
    [
        (("a",), 2),
        (("b",), 1),
        (("quoted.key",), 5),
        (("d",), 6),
        (("d", "e", "f"), 6),
        (("queues",), 8),
        (("queues", "odd name"), 8),
        (("queues", "odd name", "max_workers"), 9),
        (("queues", "odd name", "list"), 10),
        (("queues", "odd name", "list", 0), 11),
        (("queues", "odd name", "list", 1, "z", "deep"), 12),
        (("queues", "mail"), 14),
        (("queues", "mail", "when"), 15),
        (("queues", "mail", "missing"), 14),
        (("queues", "mail", "text"), 16),
        (("queues", "mail", "last"), 19),
        (("things", "one"), 21),
        (("fake", "key"), 1),
    ],
)
def test_each_key_has_its_line(key: tuple[str | int, ...], line: int) -> None:
    tomllib.loads(DOCUMENT)
    assert Positions(DOCUMENT).of(*key) == line


keys = st.from_regex(r"[a-z]{1,4}", fullmatch=True) | st.just('"a.b"') | st.just("'# ='")
values = st.sampled_from(
    [
        "1",
        '"x"',
        "'[y]'",
        '"""\n[z]\nq = 1\n"""',
        "[1,\n2 # ]\n]",
        '{ p = "}", q = [ { r = 1 } ] }',
        "inf",
        '""""a"""""',
    ]
)


@given(st.lists(st.tuples(keys, values), max_size=8))
def test_every_key_of_any_document_is_found_on_the_line_that_starts_with_it(pairs: list[tuple[str, str]]) -> None:
    unique: dict[str, Any] = dict(pairs)
    text = "".join(f"{key} = {value}  # {key} = 1\n\n" for key, value in unique.items())
    lines = Positions(text)
    for key in unique:
        (plain,) = tomllib.loads(f"{key} = 1")
        assert text.splitlines()[lines.of(plain) - 1].startswith(f"{key} = ")
