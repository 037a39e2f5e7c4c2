"""Pools and commands with a real zygote and real programs, but without a master and its database around them."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson

from forge import config
from forge.job import Claim, Ending
from forge.master.programs.programs import Programs
from forge.master.workers.zygote_process import ZygoteProcess

TASKS = "from forge import Forge\napp = Forge('sqlite:///:memory:')\n\n@app.task\ndef nothing() -> None: ...\n"


class Rig:
    """What the master's loop does for programs, and nothing else."""

    def __init__(self, folder: Path, toml: str) -> None:
        self.folder, self.places = folder, 100
        self.endings: list[Ending] = []
        self.log: list[str] = []
        self._selector = selectors.DefaultSelector()
        (folder / "tasks.py").write_text(TASKS)
        self.programs = Programs(
            self._selector,
            self.endings.append,
            lambda queue: self.places,
            lambda text, who: self.log.append(f"{who}  {text}"),
        )
        self.zygotes: list[ZygoteProcess] = []
        self.configure(toml)

    def configure(self, toml: str) -> None:
        """As at the start, and as on HUP."""
        path = self.folder / "forge.toml"
        path.write_text(f'modules = ["tasks"]\n[queues.default]\n{toml}')
        zygote = ZygoteProcess(str(path))
        zygote.wait_until_ready()
        self.zygotes.append(zygote)
        self._selector.register(zygote.control, selectors.EVENT_READ, lambda: self._hear(zygote))
        self.programs.configure(config.load(path), zygote)

    def _hear(self, zygote: ZygoteProcess) -> None:
        try:
            for message in zygote.receive():
                self.programs.heard(zygote, message)
        except EOFError:
            self._selector.unregister(zygote.control)

    def until(self, fact: Callable[[], object], within: float = 30.0) -> None:
        """Turn the loop until it holds; the time is a bound, not a measure."""
        end = time.monotonic() + within
        while not fact():
            assert time.monotonic() < end, (self.log, self.endings)
            for key, _ in self._selector.select(0.01):
                key.data()
            for zygote in self.zygotes:
                zygote.flush()
            self.programs.tick(time.monotonic())

    def enqueue(self, kind: str, payload: Any = None, **fields: Any) -> Claim:
        """A job that has just been claimed."""
        known: dict[str, Any] = {"priority": 0, "run_at": None, "id": uuid4(), "token": 1, "queue": "default"}
        known |= {"attempt": 1, "max_attempts": 5, "timeout": 60, "keep_result": True, "keyed": False}
        claim = Claim(kind=kind, payload=orjson.dumps(payload), **{**known, **fields})
        assert self.programs.take([claim]) == []
        return claim

    def ending(self, claim: Claim) -> Ending:
        """How it went."""
        self.until(lambda: any(ending.claim is claim for ending in self.endings))
        (found,) = (ending for ending in self.endings if ending.claim is claim)
        return found

    def run(self, kind: str, payload: Any = None, **fields: Any) -> Ending:
        """One job from beginning to end."""
        return self.ending(self.enqueue(kind, payload, **fields))

    def says(self, words: str) -> bool:
        return any(words in line for line in self.log)

    def close(self) -> None:
        self.programs.drain()
        self.programs.close()
        for zygote in self.zygotes:
            if zygote.control in self._selector.get_map():
                self._selector.unregister(zygote.control)
            zygote.close()
        self._selector.close()
