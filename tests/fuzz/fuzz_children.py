"""The reading side of a live master under a fuzzer that sees which lines of it each input reaches: `make fuzz`.

The first byte of an input says which kind of child speaks, the second where its words are cut; the rest are the words.
What must hold is what tests/master/test_fuzz_children.py says. Inputs that reached something new are kept in the folder
that is given as the last argument.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["forge"]):
    from forge.config.model import QueueConfig
    from tests.master import readers


def pieces(data: bytes, step: int) -> Iterator[bytes]:
    """Cut into `step` bytes each; all at once for 0."""
    for at in range(0, len(data), step or len(data) or 1):
        yield data[at : at + (step or len(data))]


def worker(words: Iterator[bytes], *, hello: bool, threads: bool) -> None:
    kind = QueueConfig(max_workers=1, worker="threads", concurrency=5) if threads else None
    rig = readers.WorkerRig(3 if hello else 0, settings=kind, hello=hello)
    try:
        for piece in words:
            rig.write(piece)
            rig.check()
        rig.end()
    finally:
        rig.close()


def zygote(words: Iterator[bytes], *, coming: bool) -> None:
    rig = readers.ZygoteRig(coming=coming)
    try:
        for piece in words:
            rig.write(piece)
            rig.check()
        rig.end()
    finally:
        rig.close()


def program(words: Iterator[bytes], *, reads: bool) -> None:
    rig = readers.PoolRig()
    try:
        for piece in words:
            if reads:
                rig.read_job()
            rig.write(piece)
            rig.turn()
            rig.check()
    finally:
        rig.close()


def one(data: bytes) -> None:
    """What one input does."""
    if len(data) < 2:
        return
    kind, words = data[0] % 8, pieces(data[2:], data[1])
    with readers.no_kills() as killed:
        if kind < 4:
            worker(words, hello=kind < 2, threads=bool(kind % 2))
        elif kind < 6:
            zygote(words, coming=bool(kind % 2))
        else:
            program(words, reads=bool(kind % 2))
    assert set(killed) <= {readers.WORKER, readers.ZYGOTE, readers.PROGRAM}, killed


def seed(folder: Path) -> None:
    """What children say that keep to the rules: from there it is not far to what they must not say."""
    folder.mkdir(parents=True, exist_ok=True)
    spoken = [*[readers.WORKER_LINES] * 4, *[readers.ZYGOTE_LINES] * 2, *[readers.PROGRAM_LINES] * 2]
    for kind, lines in enumerate(spoken):
        for number, line in enumerate(lines):
            (folder / f"seed-{kind}-{number}").write_bytes(bytes([kind, 0]) + json.dumps(line).encode() + b"\n")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    seed(Path(sys.argv[-1]))
    atheris.Setup(sys.argv, one)
    atheris.Fuzz()
