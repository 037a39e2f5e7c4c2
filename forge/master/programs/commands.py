"""The built-in kind `cmd_exec`: one process per job, of a program that the operator has named.

The payload `{"command": name, "args": {field: value}}` fills the `{fields}` of that command's words; each stays one
word and no shell sees it. Only with `[commands] allow_any` may the payload bring its own `argv`, `env`, `cwd`, `stdin`
and `timeout_secs`. Whatever the process has started is killed when it ends.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from forge.codec import encode_payload
from forge.config import CommandConfig, CommandsConfig
from forge.config.checks import suggest
from forge.descendants import how_it_ended
from forge.job import Cancelled, Claim, Dead, Done, Ending
from forge.master.programs.places import Places
from forge.master.programs.pools import failed
from forge.master.programs.process_table import CANNOT_RUN, Process, ProcessTable, Recipe

__all__ = ["KIND", "Commands", "Hidden", "Order", "Run", "Wrong", "enabled", "order_of"]

KIND = "cmd_exec"
KEPT = 65_536  # bytes: the end of stdout that a kept result has
SHOWN = 256  # bytes: the end of the output that the error of a failed command has
Hidden = Mapping[str, str | None]  # variables of the master that programs are not to see as they are
ANY_FIELDS = ("argv", "env", "cwd", "stdin", "timeout_secs")


class Wrong(ValueError):
    """A payload that asks for what cannot be run. No retry makes it right, so the job is dead."""


class Order(NamedTuple):
    """What a job asks to be run."""

    recipe: Recipe
    stdin: bytes
    seconds: int


def enabled(config: CommandsConfig) -> bool:
    """Whether these settings let a job run any command."""
    return bool(config.named) or config.allow_any


# -- from a payload to a command -----------------------------------------------------------------------------------


def order_of(claim: Claim, config: CommandsConfig, folder: str) -> Order:
    """What the job's payload asks for; `Wrong` if that is not allowed or makes no sense."""
    payload = orjson.loads(claim.payload)
    if not isinstance(payload, dict):
        raise Wrong('the payload must be an object such as {"command": "thumbnail", "args": {…}}')
    if "command" in payload:
        return _named(payload, claim, config.named, folder)
    if not config.allow_any:
        raise Wrong("the payload names no command; only with [commands] allow_any = true may it bring its own argv")
    return _free(payload, claim, folder)


def _named(payload: dict[str, Any], claim: Claim, commands: Mapping[str, CommandConfig], folder: str) -> Order:
    name, args = payload["command"], payload.get("args", {})
    _refuse_others(payload, ("command", "args"), "the payload")
    if not isinstance(name, str) or name not in commands:
        raise Wrong(f"no command {_short(name)}{suggest(str(name), commands)}")
    if not isinstance(args, dict):
        raise Wrong(f"args must be an object with the fields of the command {name}")
    command = commands[name]
    if missing := [field for field in command.parameters if field not in args]:
        raise Wrong(f"the command {name} needs {_fields(missing)} in args")
    _refuse_others(args, command.parameters, f"args of the command {name}")
    values = {field: _word(value, f"args.{field}") for field, value in args.items()}
    recipe = Recipe(tuple(word.format_map(values) for word in command.argv), command.env, str(command.cwd or folder))
    return Order(recipe, b"", min(claim.timeout, command.timeout or claim.timeout))


def _free(payload: dict[str, Any], claim: Claim, folder: str) -> Order:
    _refuse_others(payload, ANY_FIELDS, "the payload")
    argv, env = payload.get("argv"), payload.get("env", {})
    cwd, stdin, seconds = payload.get("cwd") or folder, payload.get("stdin") or "", payload.get("timeout_secs")
    if not isinstance(argv, list) or not argv or not argv[0]:
        raise Wrong('argv must be a list of words, such as ["convert", "a.png", "b.jpg"]')
    if not isinstance(env, dict):
        raise Wrong("env must be an object of texts")
    if not isinstance(cwd, str) or not isinstance(stdin, str):
        raise Wrong(f"{'stdin' if isinstance(cwd, str) else 'cwd'} must be text")
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int) or seconds < 1):
        raise Wrong("timeout_secs must be a whole number of at least 1")
    words = tuple(_word(word, f"argv[{n}]") for n, word in enumerate(argv))
    changes = {_variable(key): _word(value, f"env.{key}") for key, value in env.items()}
    recipe = Recipe(words, changes, _word(cwd, "cwd"))
    return Order(recipe, stdin.encode(), min(claim.timeout, seconds or claim.timeout))


def _refuse_others(given: Mapping[str, Any], known: tuple[str, ...], where: str) -> None:
    if others := [field for field in given if field not in known]:
        raise Wrong(f"{where} has {_fields(others)}, which is not known there{suggest(others[0], known)}")


def _word(value: Any, field: str) -> str:
    """The value of a field as one word of a command; `Wrong` if it cannot be one."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise Wrong(f"{field} must be text or a number, not {_short(value)}")
    if "\0" in (text := str(value)):
        raise Wrong(f"{field} has a NUL character in it")
    return text


def _variable(name: str) -> str:
    if not name or "=" in name or "\0" in name:
        raise Wrong(f"env has a name that no variable can have: {_short(name)}")
    return name


def _fields(names: list[str]) -> str:
    return ", ".join(name[:100] for name in names[:5])


def _short(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= 100 else f"{text[:100]}…"


# -- one run -------------------------------------------------------------------------------------------------------


class Commands:
    """The jobs of kind `cmd_exec`: those that wait for a place of their queue, and those that run."""

    def __init__(
        self, config: CommandsConfig, folder: str, table: ProcessTable, places: Places, hidden: Hidden
    ) -> None:
        self.waiting: deque[Claim] = deque()
        self.runs: set[Run] = set()
        self.places = places
        self._config, self._folder, self._table, self._hidden = config, folder, table, hidden

    def take_out(self) -> list[Claim]:
        """Take out the jobs that wait. Returns them."""
        found = list(self.waiting)
        self.waiting.clear()
        return found

    def give(self) -> None:
        """Start a process for each job that waits and that there is a place for."""
        held: list[Claim] = []
        while self.waiting:
            claim = self.waiting.popleft()
            if self.places.start(claim):
                self._start(claim)
            else:
                held.append(claim)
        self.waiting.extend(held)

    def _start(self, claim: Claim) -> None:
        try:
            order = order_of(claim, self._config, self._folder)
        except Wrong as e:
            self.places.finish(Ending(claim, Dead(str(e))))
            return
        run = Run(self._table, claim, order.seconds, self)
        self.runs.add(run)
        recipe = order.recipe._replace(env={**self._hidden, **order.recipe.env})
        self._table.start(run, recipe)
        run.write(order.stdin, close=True)

    def tick(self, now: float) -> None:
        """Kill the processes that have run for too long."""
        for run in list(self.runs):
            run.tick(now)


class Run(Process):
    """One job and the process that runs it."""

    def __init__(self, table: ProcessTable, claim: Claim, seconds: int, commands: Commands) -> None:
        super().__init__(table, f"{KIND} {claim.id}")
        self.job: Claim | None = claim
        self._commands = commands
        self._seconds, self._kill_at = seconds, time.monotonic() + seconds
        self._output = _Tail(KEPT)
        self._errors = _Tail(KEPT)

    def tick(self, now: float) -> None:
        """Kill the process if it has run for too long; its job has failed then."""
        if now >= self._kill_at and (job := self.drop()) is not None:
            self._commands.places.finish(failed(job, f"timeout after {self._seconds} s"))

    def cancel(self) -> None:
        """Kill the process; its job is cancelled."""
        if (job := self.drop()) is not None:
            self._commands.places.finish(Ending(job, Cancelled()))

    def drop(self) -> Claim | None:
        """Kill the process. Returns its job, which the caller must end; None if that has ended."""
        job, self.job = self.job, None
        self.kill()
        self._commands.runs.discard(self)
        return job

    def fail(self, why: str) -> None:
        if (job := self.drop()) is not None:
            self._commands.places.finish(failed(job, why))

    def heard(self, data: bytes) -> None:
        self._output.add(data)

    def heard_error(self, line: str) -> None:
        self._errors.add(line.encode() + b"\n")

    def ended(self) -> None:
        if (job := self.drop()) is None:
            return
        if self.zygote.gone:  # nobody can tell how it went
            self._commands.places.starter_gone(job)
        elif self.status == 0:
            result = encode_payload({"stdout": self._output.text()}) if job.keep_result else None
            self._commands.places.finish(Ending(job, Done(), result=result))
        else:
            self._commands.places.finish(failed(job, self._reason()))

    def _reason(self) -> str:
        if self.status is None or self.status < 0:
            return self.last_words if self.last_words.startswith(CANNOT_RUN) else how_it_ended(self.status)
        said = self._errors.text(SHOWN).strip() or self._output.text(SHOWN).strip()
        return f"exit {self.status}: {said}" if said else f"exit {self.status}"


class _Tail:
    """The last bytes of a stream, at most `size` of them."""

    def __init__(self, size: int) -> None:
        self._size, self._data, self._cut = size, bytearray(), False

    def add(self, data: bytes) -> None:
        self._data += data
        if len(self._data) > self._size:
            self._cut = True
            del self._data[: -self._size]

    def text(self, size: int | None = None) -> str:
        """The last `size` bytes as text, or all that were kept, with … in front if there was more."""
        data = self._data.rstrip() if size is not None else self._data
        part = data[-size:] if size is not None else data
        more = self._cut or len(part) < len(data)
        return ("…" if more else "") + part.decode(errors="replace").replace("\0", "\ufffd")
