"""From what the file or the environment says to a value of the setting's type, or what it should have been."""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from forge.config.setting import DeclaredSetting

__all__ = ["Unfit", "fit", "from_text", "wanted"]

_WORDS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?", re.IGNORECASE | re.ASCII)
_EXPONENT = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


class Unfit(Exception):
    """The value is not what the setting takes."""

    def __init__(self, wanted: str, value: Any, inner: tuple[str | int, ...] = ()) -> None:
        super().__init__(wanted)
        self.wanted = wanted  # follows "must be"
        self.value = value
        self.inner = inner  # where in the value, if it is a list or table


def fit(setting: DeclaredSetting, value: Any, folder: Path) -> Any:
    """The value that TOML gave, checked and made what the setting holds. A relative path is meant from `folder`."""
    fitted = _typed(setting, value, folder)
    if setting.about.check and (words := setting.about.check(fitted)):
        raise Unfit(words, value)
    return fitted


def from_text(setting: DeclaredSetting, text: str) -> Any:
    """What a variable says, as TOML would have given it; text that says nothing sensible stays, for `fit` to refuse."""
    if setting.type is bool:
        return _WORDS.get(text.strip().lower(), text)
    if setting.type in (int, float):
        try:
            return int(text) if re.fullmatch(r"\s*[+-]?\d+\s*", text) else float(text)
        except ValueError:
            return text
    if typing.get_origin(setting.type) is tuple:
        return [word.strip() for word in text.split(",") if word.strip()]
    return text


def _typed(setting: DeclaredSetting, value: Any, folder: Path) -> Any:
    kind = setting.type
    if kind in (int, float):
        return _number(setting, value)
    if typing.get_origin(kind) is tuple:
        return _list(setting, value)
    if typing.get_origin(kind) is Mapping:
        return _texts(setting, value)
    if not _fits(kind, value):
        raise Unfit("text that is not empty" if value == "" else wanted(setting), value)
    return folder / Path(value).expanduser() if kind is Path else value


def _fits(kind: Any, value: Any) -> bool:
    if kind is Any:
        return True
    if kind is bool:
        return isinstance(value, bool)
    if not isinstance(value, str) or value == "":
        return False
    if kind is Path:
        return "\0" not in value
    return kind is str or value in typing.get_args(kind)


def _number(setting: DeclaredSetting, value: Any) -> int | float:
    about = setting.about
    if about.unit == "bytes" and isinstance(value, str):
        value = _bytes(value, setting)
    whole = setting.type is int
    if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not _finite(value):
        raise Unfit(wanted(setting), value)
    low, high = about.low, about.high
    if low is not None and value < low:
        value = _clamped(setting, value, low)
    if high is not None and value > high:
        value = _clamped(setting, value, high)
    return int(value) if whole else float(value)


def _finite(value: float) -> bool:
    return isinstance(value, int) or math.isfinite(value)


def _clamped(setting: DeclaredSetting, value: float, bound: float) -> float:
    if not setting.about.clamp:
        raise Unfit(wanted(setting), value)
    return bound


def _bytes(text: str, setting: DeclaredSetting) -> int:
    """`512MB`, `1GiB`, `64k`"""
    found = _SIZE.fullmatch(text.strip())
    if not found:
        raise Unfit(wanted(setting), text)
    return int(float(found[1]) * (1024 if found[3] else 1000) ** _EXPONENT[found[2].lower()])


def _list(setting: DeclaredSetting, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise Unfit(wanted(setting), value)
    for index, item in enumerate(value):
        if typing.get_args(setting.type)[0] is str and not isinstance(item, str):
            raise Unfit("text", item, (index,))
    return tuple(value)


def _texts(setting: DeclaredSetting, value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Unfit(wanted(setting), value)
    for name, item in value.items():
        if not isinstance(item, str) or "\0" in item:
            raise Unfit("text", item, (name,))
        if not name or "=" in name or "\0" in name:
            raise Unfit("a name without =", name)
    return dict(value)


def wanted(setting: DeclaredSetting) -> str:
    """What the setting takes, in words that follow "must be"."""
    about, kind = setting.about, setting.type
    if kind in (int, float):
        return _number_wanted(setting)
    if typing.get_origin(kind) is Literal:
        return " or ".join(f'"{choice}"' for choice in typing.get_args(kind))
    if typing.get_origin(kind) is Mapping:
        return f"a table of text, such as {about.example}"
    if typing.get_origin(kind) is tuple:
        return f"a list of text, such as {about.example}" if typing.get_args(kind)[0] is str else "a list"
    words = {bool: "true or false", str: "text", Path: "the path of a file", Any: "a value"}[kind]
    return f"{words}, such as {about.example}" if about.example else words


def _number_wanted(setting: DeclaredSetting) -> str:
    about = setting.about
    words = "a whole number" if setting.type is int else "a number"
    if about.unit:
        words += f" of {about.unit}"
    if not about.clamp and about.low is not None:
        words += (
            f" from {about.low:.12g} to {about.high:.12g}" if about.high is not None else f", {about.low:.12g} or more"
        )
    return f'{words}, or text such as "10MB"' if about.unit == "bytes" else words
