"""Every service there is, for the master that runs them and the command that runs one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from forge.cluster.declaring import Declare
from forge.cluster.firing import Cron
from forge.cluster.reaper import Reaper, Streak
from forge.cluster.rebalance import Rebalance
from forge.cluster.retention import Retention
from forge.cluster.rollup import RollUp
from forge.cluster.service import Service
from forge.config import Config
from forge.storage import Storage
from forge.storage.contract import Fates
from forge.storage.contract.schedules import NewSchedule

__all__ = ["TIMEOUT", "by_hand", "services"]

TIMEOUT = 10.0  # seconds that a statement of a service may take


def services(
    storage: Storage,
    punctual: Storage,
    config: Callable[[], Config],
    streak: Streak,
    declared: Callable[[], Sequence[NewSchedule]],
    taken_back: Callable[[Fates], None] = lambda _: None,
) -> list[Service]:
    """Those of a pod. On `storage` they may have to wait for each other; `punctual` is where schedules fire, which must
    not wait for a slow retention. `config` answers the settings in force, `declared` the schedules of the file and of
    code; `taken_back` is told what the reaper took from others."""
    reaper = Reaper(storage, lambda: config().stale_after, streak, taken_back)
    declare = Declare(storage, lambda: config().project_name, declared)
    return [
        reaper,
        Retention(storage),
        declare,
        Cron(punctual, hears=lambda: config().listen),
        Rebalance(storage.shares),
        RollUp(storage),
    ]


def by_hand(storage: Storage, config: Config) -> list[Service]:
    """The same for somebody who runs one round: it waits for nothing, and does all there is to do."""
    reaper = Reaper(storage, lambda: config.stale_after, None)
    return [reaper, Retention(storage, at_most=math.inf), Cron(storage), Rebalance(storage.shares), RollUp(storage)]
