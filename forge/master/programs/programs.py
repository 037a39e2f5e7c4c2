"""Everything that runs jobs without being a worker: pools and commands, as the master's loop sees them.

The loop gives it the claims of its kinds, the zygote's messages and the time, and is told every ending.
"""

from __future__ import annotations

import math
import selectors
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from forge.config import Config
from forge.job import Cancelled, Claim, Ending, Released
from forge.master.programs import commands
from forge.master.programs.commands import Commands, Hidden, Run
from forge.master.programs.places import Places
from forge.master.programs.pools import Child, Pool
from forge.master.programs.process_table import Log, ProcessTable, Recipe
from forge.master.workers.suspects import ZygoteDeaths
from forge.master.workers.zygote_process import ZygoteProcess

__all__ = ["Programs"]

LOOK_EVERY = 0.1  # seconds between looks at the clock while programs run


class Programs:
    """The pools and commands of one pod. Children are started at the first tick."""

    def __init__(
        self,
        selector: selectors.BaseSelector,
        finish: Callable[[Ending], None],
        free: Callable[[str], int],
        log: Log,
        hidden: Hidden | None = None,
        deaths: ZygoteDeaths | None = None,
        ran: Callable[[Claim, float, float], None] = lambda *_: None,
    ) -> None:
        """`free` tells how many places of a queue its workers leave. `hidden`: variables that this process has set for
        its workers and that programs are to find as they were. `deaths` is the pod's. `ran` is told of each job that
        was started: since when (monotonic), and for how long it ran."""
        self._selector, self._log, self._hidden = selector, log, dict(hidden or {})
        self.places = Places(free, finish, deaths, ran)
        self._table: ProcessTable | None = None
        self._pools: dict[str, Pool] = {}  # by kind
        self._leaving: list[Pool] = []  # of a configuration before this one
        self._commands: list[Commands] = []  # the newest first; the others only have jobs that run
        self.kinds: frozenset[str] = frozenset()  # of the jobs that it runs
        self._stopping = False

    # -- its life ----------------------------------------------------------------------------------------------

    def configure(self, config: Config, zygote: ZygoteProcess) -> None:
        """Start the pools of this configuration. Called again, those of the last one go as their jobs end, and their
        jobs that wait come along."""
        if self._table is None:
            self._table = ProcessTable(self._selector, zygote, self._log)
        self._table.use(zygote)
        before = self._waiting()
        for pool in self._pools.values():
            pool.retire()
            self._leaving.append(pool)
        folder = str(config.folder)
        self._pools = {}
        for name, settings in config.pools.items():
            recipe = Recipe(settings.argv, {**self._hidden, **settings.env}, str(settings.cwd or folder))
            self._pools[settings.kind] = Pool(name, settings, recipe, self._table, self.places)
        self._commands.insert(0, Commands(config.commands, folder, self._table, self.places, self._hidden))
        self.kinds = frozenset([*self._pools, *([commands.KIND] if commands.enabled(config.commands) else [])])
        self._place(before)

    def tick(self, now: float, serving: bool = True) -> None:
        """Look at the clock if it is time, and give jobs to programs that are free; none if `serving` is false."""
        if self._table is None:
            return
        if now >= self._table.look_at:
            self._table.looked(now + LOOK_EVERY)
            self._look(now)
        self.places.blocked.clear()
        if serving and self.places.waiting:
            for pool in self._pools.values():
                pool.give()
            self._commands[0].give()

    def _look(self, now: float) -> None:
        assert self._table is not None
        self._table.tick(now)
        for pool in self._all_pools():
            pool.tick(now)
        for each in self._commands:
            each.tick(now)
        for pool in self._leaving:
            self._place(pool.take_out())
        self._leaving = [pool for pool in self._leaving if any(pool.children())]
        self._commands[1:] = [each for each in self._commands[1:] if each.runs]

    def due(self) -> float:
        """When it wants to look at the clock, monotonic; infinity: when something has happened."""
        if self._table is None:
            return math.inf
        waits = any(pool.waits for pool in self._all_pools()) or any(each.runs for each in self._commands)
        return self._table.look_at if waits else math.inf

    def drain(self) -> None:
        """Give back the jobs that wait. Programs leave as their jobs end."""
        self._stopping = True
        if self._table is not None:
            self._table.look_by(0.0)
        self._place(self._waiting())
        for pool in self._pools.values():
            pool.retire()
            self._leaving.append(pool)
        self._pools = {}

    def give_back(self, queue: str) -> None:
        """Give back the waiting jobs of a queue that is not served any more."""
        waiting = self._waiting()
        for claim in waiting:
            if claim.queue == queue:
                self.places.finish(Ending(claim, Released()))
        self._place([claim for claim in waiting if claim.queue != queue])

    @property
    def gone(self) -> bool:
        """Whether there is no process left."""
        return not self._table

    @property
    def in_hand(self) -> int:
        """How many jobs it has, running or waiting."""
        return self.places.taken.total()

    def held(self) -> Iterator[Claim]:
        """The jobs that it has, running or waiting."""
        everyone: list[Pool | Commands] = [*self._all_pools(), *self._commands]
        for each in everyone:
            yield from each.waiting
        for process in self._running():
            if process.job is not None:
                yield process.job

    def close(self) -> None:
        """Give back the jobs that run, and kill all programs at once."""
        for process in self._running():
            if (job := process.drop()) is not None:
                self.places.finish(Ending(job, Released("the master was stopped")))
        if self._table is not None:
            self._table.kill_all()

    # -- news --------------------------------------------------------------------------------------------------

    def take(self, claims: Sequence[Claim]) -> Sequence[Claim]:
        """Keep those of these jobs that are for programs. Returns the others."""
        if not self.kinds:
            return claims
        mine = [claim for claim in claims if claim.kind in self.kinds]
        for claim in mine:
            self.places.take(claim)
        self._place(mine)
        return [claim for claim in claims if claim.kind not in self.kinds] if mine else claims

    def heard(self, zygote: ZygoteProcess, message: Mapping[str, Any]) -> bool:
        """Take a message of a zygote in. Returns False if it is not about a program."""
        return self._table is not None and self._table.heard(zygote, message)

    def cancel(self, wanted: set[tuple[UUID, int]]) -> None:
        """Cancel those of these jobs (id and token) that are here."""
        for process in self._running():
            if process.job is not None and (process.job.id, process.job.token) in wanted:
                process.cancel()
        if self.places.waiting:
            for claim in (waiting := self._waiting()):
                if (claim.id, claim.token) in wanted:
                    self.places.finish(Ending(claim, Cancelled()))
            self._place([claim for claim in waiting if (claim.id, claim.token) not in wanted])

    def lost(self) -> None:
        """Forget all jobs, and kill what runs them: the pod was reaped, and they are another pod's now."""
        self._waiting()
        for process in self._running():
            process.drop()
        self.places.forget()

    def fence(self) -> int:
        """Kill all programs, because the jobs may soon be another pod's, and start none until `resume`. Returns how
        many were running."""
        if self._table is None:
            return 0
        self._table.close()
        running, idle = list(self._running()), [child for pool in self._all_pools() for child in pool.children()]
        for process in {*running, *idle}:
            if (job := process.drop()) is not None:
                self.places.finish(Ending(job, Released()))
        return len(running)

    def resume(self) -> None:
        """Start programs again, after `fence`."""
        if self._table is not None:
            self._table.reopen()

    # -- inside ------------------------------------------------------------------------------------------------

    def _place(self, claims: Sequence[Claim]) -> None:
        """Have jobs wait where they belong. Those that belong nowhere any more, or come while the pod stops, go
        back."""
        for claim in claims:
            if self._stopping or claim.kind not in self.kinds:
                self.places.finish(Ending(claim, Released()))
            elif claim.kind in self._pools:
                self._pools[claim.kind].take(claim)
            else:
                self._commands[0].waiting.append(claim)

    def _waiting(self) -> list[Claim]:
        """Take out all jobs that wait. Returns them, those of each kind in the order in which they came."""
        everyone: list[Pool | Commands] = [*self._all_pools(), *self._commands]
        return [claim for each in everyone for claim in each.take_out()]

    def _all_pools(self) -> list[Pool]:
        return [*self._pools.values(), *self._leaving]

    def _running(self) -> Iterator[Child | Run]:
        for pool in self._all_pools():
            yield from list(pool.running())
        for each in self._commands:
            yield from list(each.runs)
