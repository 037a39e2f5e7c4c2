"""Queues without workers cost the master nothing, however many they are: counted in calls, not in time."""

from __future__ import annotations

import selectors
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from forge import config
from forge.master.loop import Master
from forge.master.news import CancelsFound
from forge.master.workers.zygote_process import ZygoteProcess
from forge.storage import open_storage

TASKS = "from forge import Forge\napp = Forge('sqlite:///:memory:')\n\n@app.task\ndef nothing() -> None: ...\n"
TURNS = 5


@pytest.fixture
def zygote(tmp_path: Path) -> Iterator[ZygoteProcess]:
    """A zygote for all masters of the test."""
    (tmp_path / "tasks.py").write_text(TASKS)
    path = tmp_path / "forge.toml"
    path.write_text('modules = ["tasks"]\n[queues.default]\n')
    made = ZygoteProcess(str(path))
    made.wait_until_ready()
    yield made
    made.close()


def calls_of_turns(url: str, folder: Path, zygote: ZygoteProcess, queues: int) -> tuple[int, int]:
    """Python functions that idle turns of the loop call, without a tick; and the queues that there are."""
    path = folder / "many.toml"
    path.write_text('modules = ["tasks"]\n' + "".join(f"[queues.q{i}]\nmax_workers = 0\n" for i in range(queues)))
    calls = turns = 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    with open_storage(url) as storage:
        master = Master(storage, storage, storage, config.load(path, url), zygote)
        master._selector.register(master._bell, selectors.EVENT_READ, master._on_bell)
        master.presence.who = storage.register("ada", list(master.queues), "north", 1)
        master._tick(time.monotonic())
        master._tick_at = time.monotonic() + 3600

        def over() -> bool:
            nonlocal turns
            turns += 1
            master._post(CancelsFound([]))  # nothing, but it ends the wait
            return turns > TURNS

        sys.setprofile(count)
        try:
            master._until(over)
        finally:
            sys.setprofile(None)
            for each in (master._selector, master._bell, master._ringer):
                each.close()
        return calls, len(master.queues)


def test_a_turn_of_the_loop_calls_as_much_with_a_thousand_idle_queues_as_with_ten(
    url: str, tmp_path: Path, zygote: ZygoteProcess
) -> None:
    few, ten = calls_of_turns(url, tmp_path, zygote, 10)
    many, thousand = calls_of_turns(url, tmp_path, zygote, 1000)
    assert (ten, thousand) == (10, 1000)
    assert few > TURNS
    assert many < few + 200, "a call for each queue would be 990 more in each turn"
