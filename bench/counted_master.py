"""`forge-master` with every statement that it gives to SQLite counted, in a file shared with the bench."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import apsw

from forge.cli.master import main

if __name__ == "__main__":
    with (Path(os.environ["FORGE_BENCH_BOARD"]) / "statements").open("r+b") as file:
        counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    def count(_: object) -> None:
        """Threads may lose one to each other; a pod has few and asks seldom."""
        counts[0] += 1

    apsw.connection_hooks.append(lambda conn: conn.trace_v2(apsw.SQLITE_TRACE_STMT, count))
    sys.exit(main())
