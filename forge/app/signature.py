"""Arguments of a task checked against its function before anything is stored, and dedupe keys made from them."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import string
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from forge.errors import ConfigError, InvalidJob

__all__ = ["Dedupe", "Signature", "takes_first"]

# True: kind and arguments; "report:{user_id}": a pattern over the arguments; or a function of them (None: no key).
Dedupe = bool | str | Callable[..., str | None] | None

SHAPES_KEPT = 256

# What JSON can carry to the handler unchanged, by annotation. A tuple arrives as a list, so a list may be given as one.
_CHECKED: dict[Any, tuple[type, ...]] = {
    int: (int,),
    float: (float, int),
    str: (str,),
    bool: (bool,),
    list: (list, tuple),
    dict: (dict,),
    None: (type(None),),
    type(None): (type(None),),
}


class Signature:
    """How one task may be called."""

    def __init__(self, kind: str, fn: Callable[..., Any], dedupe: Dedupe = None, *, ctx_first: bool = False) -> None:
        """`ctx_first`: the first parameter is the context of the running job, which no caller passes."""
        self.kind = kind
        self._fn = fn
        self._signature = _signature(fn)
        if ctx_first:
            self._signature = self._signature.replace(parameters=list(self._signature.parameters.values())[1:])
        self._parameters = self._signature.parameters
        self._dedupe = self._checked_dedupe(dedupe)
        self._shapes: dict[tuple[Any, ...], tuple[str, ...]] = {}  # of calls that fit, to the keywords to move

    @functools.cached_property
    def _types(self) -> dict[str, tuple[type, ...] | None]:
        """By parameter. Found at the first call: by then every name an annotation mentions has been defined."""
        scope = getattr(inspect.unwrap(self._fn), "__globals__", {})
        return {name: _json_types(_resolved(p.annotation, scope)) for name, p in self._parameters.items()}

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments in one form, whichever way they were passed; `InvalidJob` names the parameter that is wrong.

        Whether they fit depends on their number, names and types alone, so each such shape is looked at once: after
        that it is 1 µs, where `inspect` needs 10.
        """
        shape = (tuple(map(type, args)), *kwargs, *map(type, kwargs.values())) if kwargs else tuple(map(type, args))
        moved = self._shapes.get(shape)
        if moved is None:
            moved = self._looked_at(args, kwargs)
            if len(self._shapes) >= SHAPES_KEPT:
                self._shapes.clear()
            self._shapes[shape] = moved
        if not moved:
            return args, kwargs
        return (*args, *[kwargs[name] for name in moved]), {k: v for k, v in kwargs.items() if k not in moved}

    def _looked_at(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, ...]:
        """Which of the keywords can be passed by position; `InvalidJob` if the call does not fit."""
        bound = self._bound(args, kwargs)
        for name, value in bound.arguments.items():
            self._check(name, value)
        return tuple(self._parameters)[len(args) : len(bound.args)]

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """What each parameter is in this call, defaults too."""
        bound = self._bound(args, kwargs)
        bound.apply_defaults()
        return bound.arguments

    def dedupe_key(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """The key the task's `dedupe=` makes of these arguments."""
        if self._dedupe is None:
            return None
        if callable(self._dedupe):
            return self._dedupe(*args, **kwargs)
        arguments = self.arguments(args, kwargs)
        if isinstance(self._dedupe, str):
            return self._dedupe.format_map(arguments)
        text = json.dumps(arguments, sort_keys=True, default=repr)
        return f"{self.kind}:{hashlib.sha256(text.encode()).hexdigest()[:32]}"

    @property
    def names(self) -> tuple[str, ...]:
        """Of its parameters."""
        return tuple(self._parameters)

    @property
    def dedupes(self) -> bool:
        """Whether each call has a key of its own."""
        return self._dedupe is not None

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            why = str(error)
            if why.startswith("too many positional"):
                why = f"too many positional arguments ({len(args)})"
            names = ", ".join(map(str, self._signature.replace(return_annotation=inspect.Signature.empty).parameters))
            raise InvalidJob(f"{self.kind}: {why}; it takes ({names})") from None

    def _check(self, name: str, value: Any) -> None:
        kind, wanted = self._parameters[name].kind, self._types[name]
        if wanted is None:
            return
        if kind is inspect.Parameter.VAR_POSITIONAL:
            given = list(value)
        elif kind is inspect.Parameter.VAR_KEYWORD:
            given = list(value.values())
        else:
            given = [value]
        for one in given:
            if not isinstance(one, wanted):
                allowed = " or ".join("None" if t is type(None) else t.__name__ for t in wanted)
                raise InvalidJob(f"{self.kind}: parameter {name} must be {allowed}, not {type(one).__name__}")

    def _checked_dedupe(self, dedupe: Dedupe) -> Dedupe:
        if dedupe is None or dedupe is False:
            return None
        if isinstance(dedupe, str):
            for _, field, _, _ in string.Formatter().parse(dedupe):
                if field is not None and (root := field.partition(".")[0].partition("[")[0]) not in self._parameters:
                    raise ConfigError(f"{self.kind}: dedupe names {{{root}}}, which is no parameter of the task")
        elif dedupe is not True and not callable(dedupe):
            raise ConfigError(f"{self.kind}: dedupe must be True, a pattern or a function, not {dedupe!r}")
        return dedupe


def takes_first(fn: Callable[..., Any], cls: type) -> bool:
    """Whether the first parameter is annotated as this class of forge's."""
    try:
        first = next(iter(_signature(fn).parameters.values()), None)
    except (TypeError, ValueError):  # no function, or one without a signature: refused elsewhere
        return False
    if first is None or first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        return False
    scope = getattr(inspect.unwrap(fn), "__globals__", {})
    said = first.annotation
    if isinstance(said, str) and said[:1] in "\"'":
        said = said.strip("\"'")  # written as text where all annotations are text
    found = _resolved(said, scope)
    # A name that only a type checker imports says what it is by its spelling.
    return found is cls or (found is Any and said in (cls.__name__, f"forge.{cls.__name__}"))


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        # An annotation may name something that only a type checker imports.
        return inspect.signature(fn, annotation_format=Format.FORWARDREF)
    return inspect.signature(fn)


def _resolved(annotation: Any, scope: Mapping[str, Any]) -> Any:
    """A written-out annotation as the object it names, or Any where that cannot be known at run time."""
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, dict(scope))  # the user's own source, as typing.get_type_hints does
    except Exception:  # noqa: BLE001 (whatever it raises, a type checker may still know the type)
        return Any


def _json_types(annotation: Any) -> tuple[type, ...] | None:
    """Classes a value of this annotation must have; None where the annotation is richer than JSON."""
    origin = typing.get_origin(annotation)
    if origin in (typing.Union, types.UnionType):
        parts = [_json_types(part) for part in typing.get_args(annotation)]
        return None if None in parts else tuple(dict.fromkeys(t for part in parts for t in part or ()))
    if origin is typing.Annotated:
        return _json_types(typing.get_args(annotation)[0])
    try:
        return _CHECKED.get(origin or annotation)
    except TypeError:  # unhashable
        return None
