"""Ids, which are UUIDs of version 7."""

from __future__ import annotations

import struct
from uuid import UUID, SafeUUID


def uuids(tick: int, rand: bytes) -> list[UUID]:
    """One UUIDv7 for every 8 bytes of `rand`, from `tick` on in steps of one.

    A tick is milliseconds since 1970 << 12 | counter (RFC 9562, 6.2, method 1): a full counter carries into the
    milliseconds by itself. The upper 2 of each 64 random bits give way to the variant.
    """
    if len(rand) % 8:
        raise ValueError("uuids needs 8 random bytes for each id")
    new, put, unknown = object.__new__, object.__setattr__, SafeUUID.unknown
    made = []
    # UUID() checks its arguments for 0.9 µs; its slots are set directly, as its own __init__ does in the end.
    for low in struct.unpack(f">{len(rand) // 8}Q", rand):
        made.append(found := new(UUID))
        high = (tick >> 12 & 0xFFFF_FFFF_FFFF) << 16 | 0x7000 | tick & 0xFFF
        put(found, "int", high << 64 | 1 << 63 | low & 0x3FFF_FFFF_FFFF_FFFF)
        put(found, "is_safe", unknown)
        tick += 1
    return made
