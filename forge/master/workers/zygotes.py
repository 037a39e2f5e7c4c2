"""The zygotes of a pod: the one that workers are forked from, one that is on its way to replace it, and those that
only wait for their last worker.

A new one is started beside the old, on SIGHUP or because the old one has died; the loop goes on meanwhile. One that
cannot become ready changes nothing. On SIGHUP there are workers to lose: then it is ready only when a worker of its own
has been, see `forge.worker.trial`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import time
from collections.abc import Callable, Iterator
from typing import Any

from forge.config import Config
from forge.descendants import collect_strangers, kill_marked, mark_of
from forge.errors import ForgeError
from forge.fence import Fence
from forge.host_limits import make_room
from forge.master.pod.log import a_bug, log
from forge.master.workers.zygote_process import ZygoteProcess
from forge.protocol import ProtocolError, TrialKind

__all__ = ["Zygotes", "new_zygote"]

YOUNG = 10.0  # seconds; a zygote that dies younger makes the next one wait
LONGEST_PAUSE = 30.0
PING_EVERY = 5.0  # seconds between questions to a zygote whether it is there


def new_zygote(config: Config, trial: TrialKind = "", fence: Fence | None = None) -> ZygoteProcess:
    """A zygote that imports what this configuration names; `fence` is that of the zygotes before it."""
    make_room(config)
    path = str(config.path) if config.path else None
    commands = bool(config.commands.named or config.commands.allow_any)
    empty = bool(not config.modules and (config.pools or commands))
    return ZygoteProcess(path, may_be_empty=empty, trial=trial, ready_within=config.ready_within, fence=fence)


class Zygotes:
    """The zygotes of one pod: the current one, one that is coming, and old ones that wait for their last worker."""

    def __init__(
        self,
        first: ZygoteProcess,
        config: Config,
        selector: selectors.BaseSelector,
        heard: Callable[[ZygoteProcess, dict[str, Any]], None],
        settled: Callable[[Config | None], None],
    ) -> None:
        """`first` is ready. `heard` is told what zygotes say of workers; `settled`, that a new one has taken over with
        this configuration, or with None that it could not."""
        self.current = first
        self._config = config
        self._coming: tuple[ZygoteProcess, Config] | None = None
        self._old: set[ZygoteProcess] = set()
        self._again_at: float | None = None  # monotonic: when to try to replace a dead one
        self._deaths = 0
        self._ping_at = 0.0  # monotonic
        self._strays = False  # whether there may be processes of a zygote that is gone
        self._selector, self._heard, self._settled = selector, heard, settled
        self._watch(first)

    @property
    def unsettled(self) -> bool:
        """Whether `tick` must be called soon."""
        return self._coming is not None or self._again_at is not None or self._strays

    def all(self) -> Iterator[ZygoteProcess]:
        """The zygotes that are not gone."""
        coming = [self._coming[0]] if self._coming else []
        yield from (n for n in (self.current, *self._old, *coming) if not n.gone)

    def start(self, config: Config) -> None:
        """Start a zygote with these settings, which takes over once it is ready."""
        self.give_up()
        try:
            coming = new_zygote(config, "" if self.current.gone else "start", self.current.fence)
        except ForgeError as e:
            self._not_replaced(str(e))
            return
        self._coming = coming, config
        self._watch(coming)

    def give_up(self) -> None:
        """Kill the zygote that was to take over, if there is one, and do not try again."""
        if self._coming is not None:
            self._discard(self._coming[0])
        self._coming = self._again_at = None

    def tick(self, now: float) -> None:
        """Do what is due by the clock: ping zygotes, give up a late one, try again, end what a dead one left."""
        if self._coming is not None and now - self._coming[0].started_at > self._coming[0].within:
            self._failed(str(self._coming[0].too_slow()))
        self._ping(now)
        if self._again_at is not None and now >= self._again_at:
            self.start(self._config)
        if self._strays:
            self._end_strays()
        collect_strangers({zygote.process.pid for zygote in self.all()})

    def _end_strays(self) -> None:
        """Kill what a zygote that is gone has left: workers, and what they detached. These have become children of this
        process, if it adopts orphans. Each call kills those whose parents the last one has killed."""
        own = mark_of(os.getpid())  # of a worker of somebody else's: everything here has it
        found = kill_marked(lambda number: number != own, {zygote.process.pid for zygote in self.all()})
        for pid in found:
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
        self._strays = bool(found)

    def _ping(self, now: float) -> None:
        """Ask zygotes whether they are there. One that does not answer is stopped or stuck: it is killed, which ends
        its workers, and replaced."""
        within = self._config.ready_within
        if now < self._ping_at:
            return
        self._ping_at = now + min(PING_EVERY, within / 8)
        for zygote in (self.current, *self._old):
            if not zygote.gone and not zygote.answers(now, within / 2):
                log(f"the zygote has not answered for {within / 2:g} s; it is killed", level=logging.ERROR)
                zygote.kill()

    def flush(self) -> None:
        """Write the orders that wait, and watch for zygotes to take more."""
        for zygote in self.all():
            if zygote.wants_to_write:
                zygote.flush()
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if zygote.wants_to_write else 0)
            key = self._selector.get_key(zygote.control)
            if key.events != events:
                self._selector.modify(zygote.control, events, key.data)

    def close(self) -> None:
        """Close all zygotes, and kill what they left."""
        if self._coming is not None:
            self._coming[0].kill()
        for zygote in [*self.all(), self.current]:
            zygote.close()
        self._coming, self._again_at = None, None
        for _ in range(100):
            self._end_strays()
            if not self._strays:
                break
            time.sleep(0.01)

    def _watch(self, zygote: ZygoteProcess) -> None:
        self._selector.register(zygote.control, selectors.EVENT_READ, lambda: self._on_control(zygote))

    def _on_control(self, zygote: ZygoteProcess) -> None:
        coming = self._coming is not None and self._coming[0] is zygote
        try:
            messages = zygote.receive()
        except EOFError:
            self._selector.unregister(zygote.control)
            self._gone(zygote, coming)
            return
        except (ForgeError, ProtocolError) as e:
            self._broken(zygote, f"broke the protocol: {e}" if isinstance(e, ProtocolError) else str(e))
            return
        if coming and zygote.ready:
            self._adopt()
        for message in messages:
            try:
                self._heard(zygote, message)
            except ProtocolError as e:
                self._broken(zygote, f"broke the protocol: {e}")
                return
            except Exception:  # noqa: BLE001 (the last net: it costs this zygote and its workers, not the master)
                a_bug("hearing what the zygote said")
                self._broken(zygote, "was killed: what it said could not be understood")
                return

    def _broken(self, zygote: ZygoteProcess, why: str) -> None:
        """Kill a zygote that broke the protocol. What it says from now on is not heard."""
        if self._coming is not None and self._coming[0] is zygote:
            self._failed(why)
        elif not zygote.gone:
            self._selector.unregister(zygote.control)
            zygote.kill()
            zygote.give_up()
            self._gone(zygote, coming=False, why=why)

    def _adopt(self) -> None:
        assert self._coming is not None
        (zygote, config), before = self._coming, self.current
        try:
            warnings = zygote.warnings(strict=config.fork_safety == "strict")
        except ForgeError as e:
            self._failed(str(e))
            return
        for warning in warnings:
            log(warning, level=logging.WARNING)
        self._coming, self.current, self._config = None, zygote, config
        if not before.gone:
            before.tell("retire")
            self._old.add(before)
        self._settled(config)

    def _failed(self, why: str) -> None:
        assert self._coming is not None
        self._discard(self._coming[0])
        self._coming = None
        self._not_replaced(why)

    def _not_replaced(self, why: str) -> None:
        if self.current.gone:
            self._try_again(f"no new zygote: {why}")
        else:
            log(f"not reloaded: {why}; going on as before", level=logging.ERROR)
        self._settled(None)

    def _discard(self, zygote: ZygoteProcess) -> None:
        if not zygote.gone:
            self._selector.unregister(zygote.control)
        zygote.kill()
        zygote.close()
        self._end_strays()

    def _gone(self, zygote: ZygoteProcess, coming: bool, why: str | None = None) -> None:
        if coming:
            self._failed(f"the importing process {zygote.end()}")
            return
        how = zygote.end() if why is None else f"{why} ({zygote.end()})"
        if zygote is self.current:
            if time.monotonic() - zygote.started_at > YOUNG:
                self._deaths = 0
            if self._coming is None:
                self._try_again(f"the zygote {how}, and its workers with it")
        self._end_strays()
        self._old.discard(zygote)

    def _try_again(self, why: str) -> None:
        pause = min(0.1 * 2**self._deaths, LONGEST_PAUSE) if self._deaths else 0.0
        self._deaths += 1
        self._again_at = time.monotonic() + pause
        log(f"{why}; another starts {f'in {pause:.1f} s' if pause else 'now'}", level=logging.ERROR)
