"""JSON: what may be stored, judged without writing it."""

from __future__ import annotations

from typing import Any

_INT64_MIN, _UINT64_MAX = -(2**63), 2**64 - 1


def check_json(value: Any, max_depth: int, limit: int) -> bool:
    """Whether `value` is made of exact JSON types only, sound in every part, and may fit in `limit` bytes.

    False means "look closer" (`forge.codec` does, and finds the words): a subclass may yet be fine. Size is judged from
    below, so True does not promise that it fits; but a value that refers to itself many times over ends here early.
    """
    return _room_left(value, max_depth, limit) >= 0


def _room_left(value: Any, depth: int, room: int) -> int:
    """How much of `room` is left after `value` at its shortest; negative when it does not fit or is not sound."""
    kind = type(value)
    if kind is str:
        return room - len(value) - 2 if _sound_text(value) else -1
    if kind is int:
        return room - 1 if _INT64_MIN <= value <= _UINT64_MAX else -1
    if kind is float:
        return room - 1 if value - value == 0.0 else -1  # infinity and NaN are not 0 away from themselves
    if value is None or kind is bool:
        return room - 4
    if kind is dict and depth > 0:
        room -= 2
        for key, item in value.items():
            if type(key) is not str or not _sound_text(key):
                return -1
            room = _room_left(item, depth - 1, room - len(key) - 3)
            if room < 0:
                return -1
        return room
    if (kind is list or kind is tuple) and depth > 0:
        room -= 2
        for item in value:
            room = _room_left(item, depth - 1, room)
            if room < 0:
                return -1
        return room
    return -1


def _sound_text(text: str) -> bool:
    """No NUL and no lone surrogate: neither can be stored."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
