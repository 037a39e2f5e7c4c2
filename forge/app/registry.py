"""Which handlers an app has, under which kind, and to which queue a kind goes.

A worker finds a job's handler here; nothing in this file runs one or enqueues.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, Unpack

from forge.app.fields import IF_POSSIBLE, EnqueueOptions, Seconds, TaskKeepResult, check_fields, check_options
from forge.app.handle import JobHandle
from forge.app.line_rules import LINE_OPTIONS, LineOptions, LineRule, rule_for
from forge.app.running.hooks import Hooks
from forge.app.signature import Signature
from forge.codec import check_name
from forge.errors import ConfigError, UsageError
from forge.job import NewJob
from forge.retry import Backoff, BackoffLike, backoff
from forge.storage import Storage

__all__ = [
    "App",
    "Handler",
    "HandlerOptions",
    "Registry",
    "Router",
    "kind_of",
    "make_handler",
    "make_router",
    "refuse_generator",
]

# {"gh_": "gh"}: by the longest prefix of the kind; or a function of the kind, which may answer None.
Router = Mapping[str, str] | Callable[[str], str | None]


class App(Protocol):
    """What the parts of an app, and who runs its jobs, need of it. `Forge` is one."""

    @property
    def storage(self) -> Storage: ...
    @property
    def max_payload(self) -> int: ...
    @property
    def tasks(self) -> Mapping[str, Handler]: ...
    @property
    def _hooks(self) -> Hooks: ...
    def _route(self, kind: str) -> str: ...
    def job(self, kind: str, payload: Any, **options: Unpack[EnqueueOptions]) -> NewJob: ...
    def _submit(self, jobs: Iterable[NewJob], conn: Any = None) -> list[JobHandle[Any]]: ...
    async def _asubmit(self, jobs: Sequence[NewJob], conn: Any = None) -> list[JobHandle[Any]]: ...


class HandlerOptions(LineOptions, total=False):
    """What a handler says about its jobs; an enqueue may say otherwise."""

    queue: str | None
    priority: int
    max_attempts: int
    timeout: Seconds
    backoff: BackoffLike | None
    keep_result: TaskKeepResult


@dataclass(frozen=True, slots=True)
class Handler:
    """A function and how its jobs are run."""

    kind: str
    app: App
    fn: Callable[..., Any]
    is_async: bool
    takes_ctx: bool  # called as fn(ctx, payload); else fn(*payload["args"], **payload["kwargs"]),
    ctx_first: bool  # with the context before the other arguments
    queue: str | None  # None: the router decides
    priority: int
    max_attempts: int
    timeout: int  # seconds
    backoff: Backoff | Callable[[int], float]
    keep_result: int | None  # seconds; None: not stored
    where: str  # file:line, for people
    _rule: LineRule | None = None  # of the lines that its jobs are in
    result_optional: bool = False  # a job whose result cannot be stored is done without it

    @property
    def _signature(self) -> Signature | None:
        """How a task's function is called; None: it takes a payload."""
        return None if self.takes_ctx else Signature(self.kind, self.fn, ctx_first=self.ctx_first)

    @property
    def _closed_over(self) -> bool:
        """Made inside a function: the same lines can make a different one."""
        return "<locals>" in getattr(self.fn, "__qualname__", "")


def make_handler(
    app: App, kind: str, fn: Callable[..., Any], options: HandlerOptions, *, takes_ctx: bool, ctx_first: bool = False
) -> Handler:
    """A handler with its options checked, so that a mistake shows at import and not at the first enqueue."""
    if not callable(fn):
        raise ConfigError(f"{kind}: a handler must be a function, not {fn!r}")
    refuse_generator(fn, kind)
    check_options(options, HandlerOptions, kind)
    queue, curve = options.get("queue"), options.get("backoff")
    apart = ("queue", "backoff", *LINE_OPTIONS)
    said: dict[str, Any] = {name: value for name, value in options.items() if name not in apart}
    if optional := said.get("keep_result") == IF_POSSIBLE:
        said["keep_result"] = True
    fields = check_fields(queue="default" if queue is None else queue, **said)
    made = Handler(
        kind=check_name(kind, "kind"),
        app=app,
        fn=fn,
        is_async=inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None)),  # noqa: B004 (asks what it is, not whether)
        takes_ctx=takes_ctx,
        ctx_first=ctx_first,
        queue=queue,
        priority=fields.priority,
        max_attempts=fields.max_attempts,
        timeout=fields.timeout,
        backoff=backoff(curve),
        keep_result=fields.keep_result,
        where=_where(fn),
        result_optional=optional,
    )
    rule = rule_for(kind, None, options, lambda: made._signature)
    return made if rule is None else replace(made, _rule=rule)


def refuse_generator(fn: Callable[..., Any], what: str) -> None:
    """`UsageError` for a function with a `yield` in it, also one behind decorators: to call it runs none of it."""
    if any(inspect.isgeneratorfunction(each) or inspect.isasyncgenfunction(each) for each in _layers(fn)):
        raise UsageError(
            f"{what}: {_where(fn)} is a generator function, and a call runs no line of it; take the yield out, or "
            "register a function that runs it to its end"
        )


def _layers(fn: Any) -> Iterator[Any]:
    """The function, and what it stands for: behind decorators, partials and methods, or that an object is called by."""
    for _ in range(100):  # one that is wrapped by itself must not keep us
        yield fn
        if isinstance(fn, functools.partial):
            fn = fn.func
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif hasattr(fn, "__wrapped__"):
            fn = fn.__wrapped__
        elif not inspect.isroutine(fn) and not isinstance(fn, type):
            fn = getattr(type(fn), "__call__", None)  # noqa: B004 (asks what it is, not whether)
        else:
            return


class Registry(Mapping[str, Handler]):
    """Handlers by kind."""

    def __init__(self) -> None:
        self._handlers: dict[str, Handler] = {}

    def add(self, handler: Handler) -> None:
        """Make a handler known. Only a module that is loaded again may say the same kind twice."""
        known = self._handlers.get(handler.kind)
        if known is not None and (known.where != handler.where or handler._closed_over):
            raise ConfigError(
                f"kind {handler.kind!r} is registered twice: {known.where} and {handler.where}; rename one (name=…)"
            )
        self._handlers[handler.kind] = handler

    def __getitem__(self, kind: str) -> Handler:
        return self._handlers[kind]

    def __iter__(self) -> Iterator[str]:
        return iter(self._handlers)

    def __len__(self) -> int:
        return len(self._handlers)


def make_router(router: Router | None) -> Callable[[str], str]:
    """A function from any kind to a queue."""
    if router is None:
        return lambda kind: "default"
    if callable(router):
        choose = router
        return lambda kind: choose(kind) or "default"
    if not isinstance(router, Mapping):
        raise ConfigError(f"router must be a mapping of kind prefixes to queues, or a function, not {router!r}")
    by_length = sorted(((p, check_name(q, "queue")) for p, q in router.items()), key=lambda rule: -len(rule[0]))
    return lambda kind: next((queue for prefix, queue in by_length if kind.startswith(prefix)), "default")


def kind_of(fn: Callable[..., Any], name: str | None = None) -> str:
    """The kind of a task: `module.function`, as a worker that imports the module will see it."""
    if name is not None:
        return name
    qualname = getattr(fn, "__qualname__", None) or type(fn).__qualname__
    module = getattr(fn, "__module__", None) or type(fn).__module__
    return f"{_script() if module == '__main__' else module}.{qualname}"


def _script() -> str:
    """What the running program would be called if it were imported."""
    main = sys.modules["__main__"]
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    if spec is not None:
        return str(spec.name)
    return Path(file).stem if file else "__main__"


def _where(fn: Callable[..., Any]) -> str:
    inner: Any = inspect.unwrap(fn)
    if hasattr(inner, "__code__"):
        return f"{inner.__code__.co_filename}:{inner.__code__.co_firstlineno}"
    return f"{type(inner).__module__}.{type(inner).__qualname__}"
