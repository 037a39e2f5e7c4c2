"""The processes of a run: a Redis, each contender's producer, and its workers while it has its turn."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg

from bench.rivals.contenders import Argv, Contender
from bench.rivals.environment import NODE, ROOT, redis_server

GRACE = 10.0  # seconds to stop in


@contextmanager
def redis(folder: Path) -> Iterator[str]:
    """The socket of a Redis of our own that writes nothing to disk."""
    program, env = redis_server()
    path = folder / "redis.sock"
    argv = [program, "--port", "0", "--unixsocket", str(path), "--save", "", "--appendonly", "no", "--dir", str(folder)]
    with (folder / "redis.log").open("wb") as log:
        server = subprocess.Popen(argv, env={**os.environ, **env}, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 10
        while not path.exists():
            assert server.poll() is None and time.monotonic() < end, (folder / "redis.log").read_text()
            time.sleep(0.01)
        yield str(path)
    finally:
        server.terminate()
        server.wait(GRACE)


class Stage:
    """Where a contender runs: its folder, its environment, its database and its producer."""

    def __init__(self, contender: Contender, folder: Path, admin: str, redis_socket: str) -> None:
        self.contender, self.folder = contender, folder / contender.name
        self.folder.mkdir()
        for name, text in contender.files.items():
            (self.folder / name).write_text(text)
        self.log = self.folder / "log"
        self.database = contender.name.replace("-", "_")
        with psycopg.connect(admin, autocommit=True) as conn:
            host, user = conn.info.host, conn.info.user
            if contender.durable:
                conn.execute(f"create database {self.database}")
        self.url = f"postgresql://{user}@/{self.database}?host={quote(host, safe='')}"
        self.env = {**os.environ, **contender.env, "PYTHONPATH": str(ROOT), "PEERS_NODE": str(NODE)}
        self.env |= {"PGHOST": host, "PGUSER": user, "PGDATABASE": self.database, "FORGE_DATABASE_URL": self.url}
        self.env |= {"PEERS_REDIS": redis_socket}
        self._producer: subprocess.Popen[str] | None = None

    def ask(self, do: str, **more: Any) -> Any:
        """One request to the producer, which is started at the first."""
        if self._producer is None:
            self._producer = self._start_producer()
        assert self._producer.stdin is not None
        self._producer.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self._producer.stdin.flush()
        return self._answer(self._producer)

    def _start_producer(self) -> subprocess.Popen[str]:
        with self.log.open("ab") as log:
            producer = subprocess.Popen(
                self.contender.produce,
                cwd=self.folder,
                env=self.env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._answer(producer)
        return producer

    def _answer(self, producer: subprocess.Popen[str]) -> Any:
        assert producer.stdout is not None
        line = producer.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.contender.name}: the producer ended\n{self.tail()}")
        return json.loads(line)

    def settle(self) -> None:
        """Equal ground for every turn: statistics as they would be, no checkpoint due."""
        if self.contender.durable:
            with psycopg.connect(self.url, autocommit=True) as conn:
                conn.execute("analyze")
                conn.execute("checkpoint")

    @contextmanager
    def workers(self, argvs: tuple[Argv, ...], env: Mapping[str, str]) -> Iterator[list[subprocess.Popen[bytes]]]:
        """The worker processes for one turn; each is the head of a session of its own, and all of it ends."""
        with self.log.open("ab") as log:
            started = [
                subprocess.Popen(
                    argv,
                    cwd=self.folder,
                    env={**self.env, **env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
                for argv in argvs
            ]
        try:
            yield started
        finally:
            for process in started:
                if process.poll() is None:
                    process.send_signal(self.contender.stop)
            end = time.monotonic() + GRACE
            for process in started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.1, end - time.monotonic()))
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def tail(self, lines: int = 15) -> str:
        """The end of what its processes said."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def close(self) -> None:
        """Let the producer go."""
        if self._producer is not None:
            assert self._producer.stdin is not None and self._producer.stdout is not None
            self._producer.stdin.close()
            try:
                self._producer.wait(GRACE)
            except subprocess.TimeoutExpired:
                self._producer.kill()
                self._producer.wait()
            self._producer.stdout.close()
