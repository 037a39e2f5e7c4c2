# ruff: noqa: RUF009 (`setting` makes a dataclass field)
"""The settings, table by table. Each is declared once; the phrase in the declaration is its documentation.

To add one, add a field and run `python -m tests.config.reference` for the tables in docs/configuration.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from forge.config import checks
from forge.config.setting import REQUIRED, Section, setting
from forge.errors import ConfigError
from forge.job import LARGEST_PAYLOAD, MAX_PAYLOAD, QueueSettings

__all__ = [
    "QUEUE_KEYS",
    "CommandConfig",
    "CommandsConfig",
    "Config",
    "CronConfig",
    "FaktoryConfig",
    "LimitConfig",
    "LoggingConfig",
    "PoolConfig",
    "QueueConfig",
    "WebConfig",
]

DEFAULT_DATABASE = "sqlite:///forge.db"
DAY = 86_400
WEEK = 7 * DAY

# What is a secret by its name, unless `redact` says otherwise. Not *token*: jobs that count tokens have max_tokens.
REDACTED = (
    "*password*", "*passwd", "passphrase", "*secret*", "token", "*_token", "*api_key", "*apikey", "*private_key",
    "authorization", "*cookie", "*credentials",
)  # fmt: skip

# What operators can set at run time: it is in the queue's row. The rest of a queue's settings is the pod's own.
QUEUE_KEYS = tuple(f.name for f in dataclasses.fields(QueueSettings) if f.compare and f.name != "name")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig(Section):
    """`[queues.NAME]`: a queue that this project's pods serve."""

    max_workers: int = setting(1, "workers over all pods together; see [shares](cluster.md#shares)", low=0, high=10_000)
    worker: Literal["process", "threads", "async"] = setting(
        "process", "what a worker is: a process with one job at a time, with threads, or with an asyncio loop"
    )
    concurrency: int = setting(1, "jobs at once in one worker of threads or async", low=1, high=10_000)
    timeout: int | None = setting(
        None, "the longest a job may run, whatever it asks for itself", low=1, high=WEEK, unit="seconds"
    )
    paused: bool = setting(False, "claim nothing")
    throttle: Literal["queue", "hint"] = setting(
        "queue", "a throttled job's `retry_after`: not heeded, the queue cools down by its backoff; or heeded"
    )
    backoff_enabled: bool = setting(
        False,
        "retries of jobs whose task names no backoff wait twice as long each time, and so does the queue after it was "
        "throttled; else it is the default backoff, and 60 s",
    )
    backoff_base_seconds: int = setting(
        60,
        "the first cool-down, doubled with each that follows; the first retry waits twice that",
        low=1,
        high=DAY,
        clamp=True,
        unit="seconds",
    )
    backoff_max_seconds: int = setting(
        1800, "the longest cool-down and wait for a retry", low=1, high=DAY, clamp=True, unit="seconds"
    )
    retain_done_days: float = setting(7.0, "how long done jobs are kept", low=0, high=36_500, unit="days")
    retain_dead_days: float = setting(
        30.0, "how long dead and cancelled jobs are kept", low=0, high=36_500, unit="days"
    )
    max_jobs: int | None = setting(None, "jobs after which a worker is replaced by a fresh one", low=1, high=2**31)
    max_rss: int | None = setting(
        None, "memory of a worker beyond which it is replaced, between jobs", low=1_000_000, high=2**50, unit="bytes"
    )
    min_workers: int | None = setting(
        None, "workers that a pod keeps while there is little to do; else all of its share", low=1, high=10_000
    )
    idle_shrink: float = setting(
        60.0, "how long workers above `min_workers` are kept that are not needed", low=0.05, high=DAY, unit="seconds"
    )

    def faults(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """A process has one main thread, and the least is not more than the most."""
        if self.worker == "process" and self.concurrency > 1:
            yield ("concurrency",), 'above 1 needs worker = "threads" or "async": a process runs one job at a time'
        if self.min_workers is not None and self.min_workers > max(1, self.max_workers):
            yield ("min_workers",), f"is more than max_workers ({self.max_workers})"

    def row(self) -> dict[str, Any]:
        """The settings of a queue that is new to the database, as `Storage.set_queue` takes them."""
        return {key: getattr(self, key) for key in QUEUE_KEYS}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolConfig(Section):
    """`[pools.NAME]`: warm children of any language that run the jobs of one kind."""

    kind: str = setting(REQUIRED, "the kind of job it runs", example='"render"', check=checks.name)
    argv: tuple[str, ...] = setting(
        REQUIRED, "the program and its arguments; no shell", example='["node", "render.js"]', check=checks.argv
    )
    env: Mapping[str, str] = setting({}, "variables added to the environment", example='{ NODE_ENV = "production" }')
    cwd: Path | None = setting(None, "where it runs; else the folder of `forge.toml`")
    size: int = setting(1, "children", low=1, high=10_000)
    timeout: int | None = setting(
        None, "the longest a job may run, whatever it asks for itself", low=1, high=WEEK, unit="seconds"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandConfig(Section):
    """`[commands.NAME]`: a program that a job of the kind cmd_exec may run."""

    argv: tuple[str, ...] = setting(
        REQUIRED,
        "the program and its arguments, with `{field}` where the payload's go; no shell",
        example='["convert", "{source}", "{target}"]',
        check=checks.template,
    )
    env: Mapping[str, str] = setting({}, "variables added to the environment", example='{ LANG = "C" }')
    cwd: Path | None = setting(None, "where it runs; else the folder of `forge.toml`")
    timeout: int | None = setting(
        None, "the longest it may run, whatever the job asks for itself", low=1, high=WEEK, unit="seconds"
    )

    @property
    def parameters(self) -> tuple[str, ...]:
        """The fields that a payload must fill."""
        return checks.parameters(self.argv)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandsConfig(Section):
    """`[commands]`: what jobs of the kind cmd_exec may run."""

    allow_any: bool = setting(False, "whoever can enqueue may run any program as forge's user")
    named: Mapping[str, CommandConfig] = setting({}, "the commands", rest=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class CronConfig(Section):
    """`[cron.NAME]`: a schedule."""

    task: str | None = setting(None, "the task to enqueue; or", example='"tasks.report"', check=checks.name)
    kind: str | None = setting(None, "the kind to enqueue", example='"report"', check=checks.name)
    args: tuple[Any, ...] | None = setting(None, "the task's arguments", check=checks.json_value)
    payload: Any = setting(None, "the payload: an object holds a task's named arguments", check=checks.json_value)
    schedule: str = setting(
        REQUIRED,
        "cron expression of 5 fields, or 6 with seconds first, or `@daily` and the like",
        example='"0 3 * * *"',
        check=checks.schedule,
    )
    timezone: str = setting("UTC", "the time zone the schedule is meant in", check=checks.timezone)
    queue: str | None = setting(None, "else the task's, else `default`", check=checks.name)
    catch_up: Literal["one", "all", "none"] = setting("one", "which missed times are made up for")
    jitter: float = setting(
        0.0, "each job runs up to this long after its time, always the same for a time", low=0, high=DAY, unit="seconds"
    )
    skip_if_running: bool = setting(False, "skip a time while the job of the one before has not ended")

    def faults(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """One of `task` and `kind` must be there, and not both; of `args` and `payload` one at most."""
        if (self.task is None) == (self.kind is None):
            yield ("kind" if self.kind else "schedule",), 'needs either task = "…" or kind = "…" beside it'
        if self.args is not None and self.payload is not None:
            yield ("args",), "and payload are both given; give one"


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitConfig(Section):
    """`[limits.NAME]`: a budget that all pods share."""

    capacity: int = setting(REQUIRED, "tokens there are at most", low=1, high=10**9, example="50")
    refill_per_sec: float = setting(REQUIRED, "tokens that come back each second", low=1e-6, high=1e9, example="0.83")


@dataclass(frozen=True, slots=True, kw_only=True)
class WebConfig(Section):
    """`[web]`: the HTTP API, dashboard and metrics; served if the table is there."""

    bind: str = setting("127.0.0.1", "the address to listen on")
    port: int = setting(7420, "the port", low=0, high=65_535)
    token_hash: str | None = setting(
        None, "`sha256:` and the SHA-256 of the token that clients send", check=checks.token_hash, secret=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FaktoryConfig(Section):
    """`[faktory]`: the Faktory protocol; served if the table is there."""

    bind: str = setting("127.0.0.1", "the address to listen on")
    port: int = setting(7419, "the port", low=0, high=65_535)
    password: str | None = setting(None, "what clients must know", secret=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingConfig(Section):
    """`[logging]`: what forge-master and its workers write."""

    level: Literal["debug", "info", "warning", "error"] = setting("info", "the least important lines to write")
    format: Literal["text", "json"] = setting("text", "for people or for machines")
    file: Path | None = setting(None, "else standard error; opened anew on SIGUSR1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Section):
    """What one command, one pod or one `Forge()` runs with."""

    database: str = setting(
        DEFAULT_DATABASE,
        "where jobs are; see [storage](storage.md)",
        variables=("FORGE_DATABASE_URL", "DATABASE_URL"),
        check=lambda url: "text without NUL characters" if "\0" in url else None,
    )
    schema: str = setting("forge", "the PostgreSQL schema of the tables; SQLite has none")
    modules: tuple[str, ...] = setting(
        (),
        "Python modules that define tasks, beside `forge.toml` or installed",
        example='["tasks"]',
        check=checks.names,
    )
    max_payload: int = setting(MAX_PAYLOAD, "JSON that a payload may have", low=1, high=LARGEST_PAYLOAD, unit="bytes")
    shutdown_timeout: float = setting(
        25.0, "how long running jobs may take to end when the pod stops", low=0, high=DAY, unit="seconds"
    )
    project: str | None = setting(
        None,
        "whose the declared schedules are; else the package of the first module. See [schedules](cron.md#projects)",
        check=checks.name,
    )
    worker_prefix: str | None = setting(
        None, "of the name that this pod is shown by; see [labels](cluster.md#labels)", check=checks.name
    )
    worker_version: str | None = setting(None, "the release that runs, in that name", check=checks.name)
    worker_id: str | None = setting(None, "what tells this pod from others, in that name", check=checks.name)
    cancel_grace: float = setting(
        5.0, "between each step of a cancellation: asked, interrupted, killed", low=0, high=DAY, unit="seconds"
    )
    heartbeat: float = setting(1.0, "how often a pod says that it lives", low=0.05, high=3600, unit="seconds")
    stale_after: float = setting(
        60.0, "the silence after which a pod's jobs are [given to others](cluster.md#a-pod-fences-itself)", low=1,
        high=DAY, unit="seconds",
    )  # fmt: skip
    capacity: int = setting(
        1, "this pod's part of the workers of its queues, compared with that of the others", low=1, high=10_000
    )
    leader_ttl: float = setting(
        15.0, "the silence after which another pod leads in the place of one that did", low=0.2, high=3600,
        unit="seconds",
    )  # fmt: skip
    poll_interval: float = setting(
        1.0, "how often queues are looked at when no wake-up comes", low=0.01, high=3600, unit="seconds"
    )
    listen_database: str | None = setting(
        None,
        "the same database past a pooler, for wake-ups alone; see [PgBouncer](storage.md#pgbouncer)",
        check=lambda url: "text without NUL characters" if "\0" in url else None,
    )
    listen: bool = setting(True, "whether the pod is woken up; else it only polls")
    database_patience: float = setting(
        1.4,
        "for how long a program tries again when it cannot reach PostgreSQL: after 100 ms, 300 ms, 1 s, then every 2 s",
        low=0, high=DAY, unit="seconds",
    )  # fmt: skip
    max_crashes: int = setting(3, "workers a job may take down before it is dead", low=1, high=1000)
    unknown_kind_ttl: float = setting(
        DAY * 1.0, "how long a job waits for a handler of its kind before it is dead", low=0, high=36_500 * DAY,
        unit="seconds",
    )  # fmt: skip
    ready_within: float = setting(
        30.0, "how long a new worker may take over `on_worker_start`", low=0.1, high=DAY, unit="seconds"
    )
    fork_safety: Literal["warn", "strict"] = setting(
        "warn", "modules that leave threads or connections behind when imported: told of, or refused"
    )
    redact: tuple[str, ...] = setting(
        REDACTED,
        "names of fields whose values are shown as `***`, of payloads, results, errors and log lines; see [secrets]"
        "(operating.md#secrets)",
        example='["password", "*token"]',
        check=checks.patterns,
    )
    pid_file: Path | None = setting(None, "written and locked while forge-master runs")
    logging: LoggingConfig = setting(LoggingConfig(), "what is logged")
    queues: Mapping[str, QueueConfig] = setting({}, "queues that are served", variables=("FORGE_QUEUES",))
    pools: Mapping[str, PoolConfig] = setting({}, "programs that run jobs")
    commands: CommandsConfig = setting(CommandsConfig(), "what cmd_exec may run")
    cron: Mapping[str, CronConfig] = setting({}, "schedules")
    limits: Mapping[str, LimitConfig] = setting({}, "shared budgets")
    web: WebConfig | None = setting(None, "the HTTP server")
    faktory: FaktoryConfig | None = setting(None, "the Faktory server")

    path: Path | None = None  # the file that was read
    # Of each setting, as in queues.mail.paused: a flag, a variable, file:line or default.
    origin: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def folder(self) -> Path:
        """What relative paths are meant from, and where modules are looked for first."""
        return self.path.parent if self.path else Path.cwd()

    @property
    def project_name(self) -> str:
        """What tells this project's declarations from those of others on the same database."""
        return self.project or (self.modules[0].partition(".")[0] if self.modules else "")

    def declared_queues(self) -> Mapping[str, QueueConfig]:
        """The queues that a pod serves; `ConfigError` if there are none."""
        if not self.queues:
            raise ConfigError(
                "no queues declared; add [queues.default] to forge.toml, or set FORGE_QUEUES=default,mail"
            )
        return self.queues

    def faults(self) -> Iterator[tuple[tuple[str, ...], str]]:
        """One late beat must not look like a death, and a kind has one pool."""
        if self.stale_after < 3 * self.heartbeat:
            yield ("stale_after",), f"must be at least 3 heartbeats ({3 * self.heartbeat:g} seconds)"
        kinds: dict[str, str] = {}
        for name, pool in self.pools.items():
            if pool.kind in kinds:
                yield ("pools", name, "kind"), f"is that of pools.{kinds[pool.kind]} too; a kind has one pool"
            kinds[pool.kind] = name
