"""For tests of programs that use forge: their tasks run in the test itself, on a database that is the test's own.

Nothing here starts a process or a server. `forge.testing.plugin` offers the same as fixtures of pytest.
"""

from __future__ import annotations

from forge.inline import Summary
from forge.testing.asserting import assert_enqueued, refute_enqueued
from forge.testing.database import advance, temporary_database
from forge.testing.running import drain, inline

__all__ = ["Summary", "advance", "assert_enqueued", "drain", "inline", "refute_enqueued", "temporary_database"]
