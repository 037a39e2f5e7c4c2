"""Where forge's settings come from: a flag, the environment, `forge.toml`, a default, in that order.

This package reads and checks; it opens no database and imports no user code. Of every value it remembers the origin,
so that `forge config show --origin` can say why a setting is what it is. A URL that is shown to anybody goes through
`mask`. The settings themselves are declared in `forge.config.model`.
"""

from __future__ import annotations

from forge.config.checks import suggest
from forge.config.databases import same_database, shown_url, sqlite_file
from forge.config.masking import mask, scrub, well_formed
from forge.config.model import (
    QUEUE_KEYS,
    CommandConfig,
    CommandsConfig,
    Config,
    CronConfig,
    FaktoryConfig,
    LimitConfig,
    LoggingConfig,
    PoolConfig,
    QueueConfig,
    WebConfig,
)
from forge.config.reading import database_url, find, load
from forge.config.showing import Shown, shown

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
    "Shown",
    "WebConfig",
    "database_url",
    "find",
    "load",
    "mask",
    "same_database",
    "scrub",
    "shown",
    "shown_url",
    "sqlite_file",
    "suggest",
    "well_formed",
]
