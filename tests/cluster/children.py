"""What the racing processes of these tests do."""

from __future__ import annotations

from typing import Any

from forge.cluster.firing import Cron
from tests.storage import children


def fire_all(barrier: Any, url: str, term: int) -> int:
    """Be a leader until nothing is due; how many fire times were said to have fired."""
    fired = 0
    with children.opened(url, barrier) as storage:
        service = Cron(storage)
        while storage.schedules.due().schedules:
            said = service.run_once(term)
            fired += int(said.split()[1]) if said else 0
    return fired
