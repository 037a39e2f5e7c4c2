"""Every function of the native path against its Python twin, on input as a busy pod has it, batches of 1000.

Keys: gains (how many times as fast the native one is, by function: the median of interleaved rounds), least (the
smallest of them). lost and duplicates count answers of the twin that the native path did not give, and the other way
round. Ends with an error where a function has no input here, answers differ, or one gains less than 1.3x: such a
function is not worth its C and is to be removed. Write the figures into the comments in forge/_native.
"""

from __future__ import annotations

import gc
import importlib
import json
import math
import os
import re
import statistics
import sys
import time
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from itertools import starmap
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that it runs by its path

from bench.common import PAYLOAD, arguments, facts, say
from forge import Context, Forge, _fastpath_py, fastpath
from forge.job import Claim, Done, Ending, NewJob
from forge.logs import current_job

NATIVE: ModuleType = importlib.import_module("forge._fastpath")
FRONT_DOOR = Path(_fastpath_py.__file__).with_name("_fastpath.pyx")
WORTH = 1.3
BATCH = 1000

Inputs = list[tuple[Any, ...]]
CASES: dict[str, Callable[[int], Inputs]] = {}


class Gain(NamedTuple):
    ratio: float
    native: float  # seconds a job
    twin: float


def case(make: Callable[[int], Inputs]) -> Callable[[int], Inputs]:
    """The function of this name is called with these arguments, which make n jobs together."""
    CASES[make.__name__] = make
    return make


def batches(items: Sequence[Any]) -> list[list[Any]]:
    """As the path gets them: a thousand at a time."""
    return [list(items[at : at + BATCH]) for at in range(0, len(items), BATCH)]


def jobs(n: int) -> list[NewJob]:
    """Ordinary ones, of one task."""
    return [NewJob(id_, "tasks.noop", PAYLOAD) for id_ in fastpath.uuid7_many(n)]


@case
def check_json(n: int) -> Inputs:
    fields = {
        "user": 17,
        "to": "ada@example.org",
        "subject": "Kites",
        "cc": [],
        "html": True,
        "score": 0.5,
        "ref": None,
    }
    return [({**fields, "i": i}, 64, 1 << 20) for i in range(n)]


@case
def uuids(n: int) -> Inputs:
    return [(1_763_257_000_123 << 12, os.urandom(8 * len(batch))) for batch in batches(range(n))]


@case
def claims(n: int) -> Inputs:
    rows = [
        (0, 1_763_257_000_000_000 + i, os.urandom(16), "tasks.noop", PAYLOAD, 1, 5, 600, None, None) for i in range(n)
    ]
    return [(batch, 5 << 32 | 9, "default") for batch in batches(rows)]


@case
def delay(n: int) -> Inputs:
    curves = "decorrelated", "exponential", "faktory"
    return [(curves[i % 3], i % 12, 1.0, 3600.0, i / n) for i in range(n)]


@case
def copy_rows(n: int) -> Inputs:
    return [(batch, [817_000_000_000_000 + i for i in range(len(batch))] if timed else None)
            for timed, batch in enumerate(batches(jobs(n)))]  # fmt: skip


@case
def task_jobs(n: int) -> Inputs:
    calls = [(i, f"user-{i}@example.org", "x" * 40) for i in range(n)]
    rest = tuple(NewJob(fastpath.uuid7(), "k", b""))[3:]
    return [(batch, 0, len(batch), (int, str, str), fastpath.uuid7_many(len(batch)), "tasks.send", rest, 64, 1 << 20)
            for batch in batches(calls)]  # fmt: skip


@case
def survey(n: int) -> Inputs:
    return [(batch,) for batch in batches(jobs(n))]


@case
def uuid_array(n: int) -> Inputs:
    return [(batch,) for batch in batches(fastpath.uuid7_many(n))]


@case
def int8_array(n: int) -> Inputs:
    return [(batch,) for batch in batches([5 << 32 | i for i in range(n)])]


@case
def plain_endings(n: int) -> Inputs:
    ids, done = fastpath.uuid7_many(n), Done()
    found = [
        Ending(Claim(0, None, id_, 5 << 32 | 9, "default", "k", PAYLOAD, 1, 5, 600, False, False), done) for id_ in ids
    ]
    return [(batch, i % 2 == 0) for i, batch in enumerate(batches(found))]  # for PostgreSQL, for SQLite


def some_claims(n: int) -> list[Claim]:
    """Of no-op jobs."""
    return [
        Claim(0, 817_000_000_000_000, id_, 5 << 32 | 9, "default", "tasks.noop", PAYLOAD, 1, 5, 600, False, False)
        for id_ in fastpath.uuid7_many(n)
    ]


@case
def job_lines(n: int) -> Inputs:
    return [(batch, {}, 5.0) for batch in batches(some_claims(n))]


@case
def jobs_in(n: int) -> Inputs:
    return [(_fastpath_py.job_lines(batch, {}, 0.0),) for batch in batches(some_claims(n))]


@case
def done_line(n: int) -> Inputs:
    return [(id_, 0.0000123 * i) for i, id_ in enumerate(fastpath.uuid7_many(n))]


@case
def burst(n: int) -> Inputs:
    def noop(ctx: Context, payload: Any) -> None:
        pass

    app = Forge("sqlite:///unused.db")
    plain = {"tasks.noop": (app.handler("tasks.noop")(noop), app, noop, True, False)}
    port = SimpleNamespace(early={}, closed=False, link=None, replies=[])
    rest = plain, port, SimpleNamespace(ctx=None), Context, current_job, time.monotonic, math.inf, n
    return [(deque(batch), *rest) for batch in batches(some_claims(n))]


@case
def timed(n: int) -> Inputs:
    times = new_times()
    return [(times, 0.000012 * i, 817_000_000_000_000 + i, 1.0 + i, 817e6) for i in range(n)]


def new_times() -> array[int]:
    """A histogram of run times and one of latencies."""
    return array("q", bytes(16 * fastpath.BUCKETS))


def replies(n: int) -> Inputs:
    """As a worker sends them."""
    done, times = Done(), new_times()
    return [
        (
            b"".join(_fastpath_py.done_line(c.id, 0.000012 * i) for i, c in enumerate(batch)),
            {c.id.hex: (c, 1.0 + i) for i, c in enumerate(batch)},
            done,
            times,
            817e6,
        )
        for batch in batches(some_claims(n))
    ]


CASES["answers"] = replies


@case
def text_array(n: int) -> Inputs:
    return [(batch,) for batch in batches([f"default-queue {i:04}" for i in range(n)])]


@case
def resp_simple(n: int) -> Inputs:
    return [("OK",)] * n


@case
def resp_error(n: int) -> Inputs:
    return [("ERR", f"Job not found {i}") for i in range(n)]


@case
def resp_int(n: int) -> Inputs:
    return [(i,) for i in range(n)]


@case
def resp_bulk(n: int) -> Inputs:
    return [(PAYLOAD if i % 4 else None,) for i in range(n)]  # FETCH, and now and then nothing to be had


@case
def resp_commands(n: int) -> Inputs:
    return [(b'ACK {"jid":"%016d"}\r\n' % i, 1 << 20) for i in range(n)]  # clients wait for each answer


@case
def resp_values(n: int) -> Inputs:
    replies = b"+OK\r\n", b"$%d\r\n%b\r\n" % (len(PAYLOAD), PAYLOAD), b"$-1\r\n", b"-ERR unknown command X\r\n"
    return [(replies[i % 4], 1 << 20) for i in range(n)]


def public() -> list[str]:
    """The functions of the native path, as it has them; an error where its twin or this file does not keep up."""
    own = [
        name
        for name, value in vars(NATIVE).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == NATIVE.__name__
    ]
    for what, names in (
        ("no twin in _fastpath_py.__all__", _fastpath_py.__all__),
        ("no input in bench/fastpath.py", CASES),
    ):
        if missing := set(own) - set(names):
            raise SystemExit(f"{what}: {', '.join(sorted(missing))}")
        if missing := set(names) - set(own):
            raise SystemExit(f"not in _fastpath.pyx (or make setup is due): {', '.join(sorted(missing))}")
    return own


def source() -> str:
    """All parts of the native path, in the order in which its front door includes them."""
    names = re.findall(r'^include "(.+)"$', FRONT_DOOR.read_text("utf-8"), re.MULTILINE)
    return "".join((FRONT_DOOR.parent / name).read_text("utf-8") for name in names)


def stated(text: str) -> dict[str, float]:
    """The gain that stands in the comment above each function of this source; 0 where there is none."""
    found = {}
    for comment, name in re.findall(r"((?:^#.*\n)*)^def ([a-z]\w*)\(", text, re.MULTILINE):
        figure = re.search(r"(\d+(?:\.\d+)?)x the twin", comment)
        found[name] = float(figure[1]) if figure else 0.0
    return found


def turn(call: Callable[..., Any], inputs: Inputs) -> float:
    """Seconds; starmap and deque add the least there is to a call."""
    inputs = fresh(inputs)
    began = time.perf_counter()
    deque(starmap(call, inputs), maxlen=0)
    return time.perf_counter() - began


def fresh(inputs: Inputs) -> Inputs:
    """With dictionaries and lines of their own, which a function may change."""
    return [tuple(each.copy() if type(each) in (dict, deque) else each for each in args) for args in inputs]


def measure(name: str, inputs: Inputs, n: int, rounds: int) -> Gain:
    """In turns, each first as often as the other."""
    native, twin = getattr(NATIVE, name), getattr(_fastpath_py, name)
    times: dict[Any, list[float]] = {native: [], twin: []}
    for i in range(rounds + 1):
        for each in (native, twin) if i % 2 else (twin, native):
            times[each].append(turn(each, inputs))
    ratio = statistics.median(
        b / a for a, b in list(zip(times[native], times[twin], strict=True))[1:]
    )  # one to warm up
    return Gain(round(ratio, 2), statistics.median(times[native]) / n, statistics.median(times[twin]) / n)


def answers(call: Callable[..., Any], inputs: Inputs) -> set[tuple[int, str]]:
    """What it says to each input."""
    return set(enumerate(map(repr, starmap(call, fresh(inputs)))))


def judge(names: Sequence[str], n: int, rounds: int) -> tuple[dict[str, Gain], int, int]:
    """The gains, and how many answers only the twin or only the native path gave."""
    notes, gains = stated(source()), {}
    lost = duplicates = 0
    say(f"{'':<16}{'gain':>7}{'stated':>8}{'native µs':>12}{'twin µs':>10}  a job")
    for name in names:
        inputs = CASES[name](n)
        found, expected = answers(getattr(NATIVE, name), inputs), answers(getattr(_fastpath_py, name), inputs)
        lost, duplicates = lost + len(expected - found), duplicates + len(found - expected)
        gains[name] = gain = measure(name, inputs, n, rounds)
        note = f"{notes.get(name, 0):g}x"
        say(f"{name:<16}{gain.ratio:>6.2f}x{note:>8}{gain.native * 1e6:>12.3f}{gain.twin * 1e6:>10.3f}")
    return gains, lost, duplicates


def main() -> int:
    """All of them, in about ten seconds."""
    args = arguments(__doc__ or "", jobs=10_000, rounds=25)
    began, names = time.perf_counter(), public()
    gc.disable()  # as timeit does: a collection would be charged to whoever's turn it is
    try:
        gains, lost, duplicates = judge(names, args.jobs, args.rounds)
    finally:
        gc.enable()
    ratios = {name: gain.ratio for name, gain in gains.items()}
    if args.json:
        figures = {
            "jobs": args.jobs * len(names),
            "seconds": round(time.perf_counter() - began, 1),
            "jobs_per_s": round(len(names) / sum(gain.native for gain in gains.values())),
            "lost": lost,
            "duplicates": duplicates,
            "backend": None,
            "gains": ratios,
            "least": min(ratios.values()),
        }
        print(json.dumps({**figures, **facts()}))
    if lost or duplicates:
        print(f"{lost + duplicates} answers differ between the native path and its twin", file=sys.stderr)
    if idle := [name for name, ratio in ratios.items() if ratio < WORTH]:
        print(f"less than {WORTH}x, so to be removed from the native path: {', '.join(idle)}", file=sys.stderr)
    return 1 if lost or duplicates or idle else 0


if __name__ == "__main__":
    sys.exit(main())
