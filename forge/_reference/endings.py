"""Endings of jobs that are done, packed for the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import orjson

from forge._reference.pgwire import UUID_OID, array_of, int8_array
from forge.job import Done, Ending

# The plain endings of a batch: ids, tokens, queues, and how many are of each pod (the upper half of a token).
Plain = tuple[bytes, bytes, set[str], dict[int, int]]


def plain_endings(endings: Sequence[Ending], arrays: bool) -> Plain | None:
    """What to write where every ending is the commonest: done, with nothing to keep or to follow, of a job without a
    key, and no job twice. None: look at each. Ids are in ascending order, each with its token.

    With `arrays` a uuid[] and a bigint[] as PostgreSQL takes them, else 16 bytes after 16 bytes, and JSON."""
    found: dict[int, int] = {}
    queues = set()
    for claim, outcome, _, _, result, children in endings:
        if type(outcome) is not Done or result is not None or children or claim.keyed or claim.id.int in found:
            return None
        found[claim.id.int] = claim.token
        queues.add(claim.queue)
    numbers = sorted(found)
    tokens = [found[number] for number in numbers]
    ids = [number.to_bytes(16, "big") for number in numbers]
    pods = dict(Counter(token >> 32 for token in found.values()))
    if arrays:
        return array_of(UUID_OID, [b"\0\0\0\x10" + data for data in ids]), int8_array(tokens), queues, pods
    return b"".join(ids), orjson.dumps(tokens), queues, pods
