"""What a storage must do, verb by verb, and the values that its verbs take and answer. Abstract: no database here.

`Storage` has the verbs about jobs, queues and pods, and a store for each other subject, in the file of that name. One
thing is taken from `forge.storage.shared`, what a dispatcher keeps from claim to claim (`LowWater`); otherwise that
package builds on this one, and the two databases on both.
"""

from __future__ import annotations

from forge.storage.contract.schema import SchemaState
from forge.storage.contract.statements import Plan, Query, Step
from forge.storage.contract.storage import Storage
from forge.storage.contract.values import (
    MAX_CRASHES,
    Cancellation,
    Deletion,
    Fates,
    Incarnation,
    Note,
    Pruned,
    Reaped,
    RowsLocked,
    Want,
)
from forge.storage.shared.low_water import LowWater

__all__ = [
    "MAX_CRASHES",
    "Cancellation",
    "Deletion",
    "Fates",
    "Incarnation",
    "LowWater",
    "Note",
    "Plan",
    "Pruned",
    "Query",
    "Reaped",
    "RowsLocked",
    "SchemaState",
    "Step",
    "Storage",
    "Want",
]
