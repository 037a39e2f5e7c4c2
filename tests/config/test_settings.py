"""Every table is read into typed values; what is wrong is one line with its place; variables win; secrets hide."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from forge import codec, config
from forge.config import QUEUE_KEYS, checks
from forge.config.setting import declared_settings
from forge.errors import ConfigError, InvalidJob
from forge.job import QueueSettings
from forge.storage.shared.queue_settings import check_settings
from tests.config import reference
from tests.config.conftest import Load

pytestmark = pytest.mark.impl_free

FULL = """\
shutdown_timeout = 5
fork_safety = "strict"
pid_file = "run/forge.pid"
[logging]
level = "debug"
format = "json"
[queues.io]
max_workers = 2
worker = "async"
concurrency = 100
max_rss = "512MB"
backoff_base_seconds = 0
backoff_max_seconds = 100000
[pools.render]
kind = "render"
argv = ["node", "render.js"]
env = { NODE_ENV = "production", API_TOKEN = "hunter2", URL = "redis://u:hunter2@h" }
size = 2
[commands]
allow_any = true
[commands.thumb]
argv = ["convert", "{source}", "-resize", "{w}x{h}", "{{}}"]
[cron.nightly]
task = "tasks.report"
schedule = "0 3 * * *"
timezone = "Europe/Berlin"
[cron.often]
kind = "tick"
schedule = "*/10 * * * * *"
payload = { password = "hunter2" }
[limits.slack]
capacity = 50
refill_per_sec = 0.83
[web]
port = 8080
[faktory]
password = "hunter2"
"""


def test_every_table_becomes_typed_values(load: Load, tmp_path: Path) -> None:
    found = load(FULL)
    assert (found.shutdown_timeout, found.fork_safety, found.stale_after) == (5.0, "strict", 60.0)
    assert found.pid_file == tmp_path / "run/forge.pid"
    assert found.logging == config.LoggingConfig(level="debug", format="json")
    assert found.queues["io"] == config.QueueConfig(
        max_workers=2,
        worker="async",
        concurrency=100,
        max_rss=512_000_000,
        backoff_base_seconds=1,
        backoff_max_seconds=86_400,
    )
    assert (found.pools["render"].argv, found.pools["render"].size) == (("node", "render.js"), 2)
    assert found.commands.allow_any
    assert found.commands.named["thumb"].parameters == ("source", "w", "h")
    assert found.cron["nightly"] == config.CronConfig(
        task="tasks.report", schedule="0 3 * * *", timezone="Europe/Berlin"
    )
    assert found.limits == {"slack": config.LimitConfig(capacity=50, refill_per_sec=0.83)}
    assert found.web == config.WebConfig(port=8080)
    assert found.faktory == config.FaktoryConfig(password="hunter2")
    assert load("").web is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "[queues.a]\nmax_workers = 10001",
            ":2: queues.a.max_workers must be a whole number from 0 to 10000, not 10001",
        ),
        ("[queues.a]\nmax_workers = 4.0", ":2: queues.a.max_workers must be a whole number from 0 to 10000, not 4.0"),
        (
            "[queues]\na.worker = 'thread'",
            ':2: queues.a.worker must be "process" or "threads" or "async", not \'thread\'',
        ),
        ("queues = { a = {\tconcurency = 1 } }", ":1: unknown key queues.a.concurency; did you mean concurrency?"),
        (
            "[queues.a]\nconcurrency = 2",
            ':2: queues.a.concurrency above 1 needs worker = "threads" or "async": a process runs one job at a time',
        ),
        ("shutdown_timeout = nan", ":1: shutdown_timeout must be a number of seconds from 0 to 86400, not nan"),
        ("\nheartbeat = 30", ":1: stale_after must be at least 3 heartbeats (90 seconds)"),
        ("[pools.x]\nkind = 'k'", ':1: pools.x has no argv; add argv = ["node", "render.js"]'),
        ("[pools.x]\nkind = 'k'\nargv = [\n'a',\n5]", ":5: pools.x.argv[1] must be text, not 5"),
        ("[pools.x]\nkind='k'\nargv=['a']\n[pools.x.env]\nTOKEN = 5", ":5: pools.x.env.TOKEN must be text, not ***"),
        ("[pools.x]\nkind='k'\nargv=['']", ":3: pools.x.argv must be a program and its arguments"),
        (
            "[pools.'a.b']\nkind='k'\nargv=['a']\n[pools.b]\nkind='k'\nargv=['a']",
            ":5: pools.b.kind is that of pools.a.b",
        ),
        ("[commands]\nalow_any = true", ":2: unknown key commands.alow_any; did you mean allow_any?"),
        ("[commands.x]\nargv = ['{a}']", ":2: commands.x.argv must be a program without {fields} in its name"),
        ("[commands.x]\nargv = ['a', '{b']", ":2: commands.x.argv must be arguments with fields such as {width}"),
        ("[commands.x]\nargv = ['a', '{b.c}']", "{b.c} is not a plain name"),
        (
            "[cron.x]\ntask='t'\nschedule='0 3 * *'",
            ":3: cron.x.schedule must be 5 cron fields, or 6 with seconds first",
        ),
        ("[cron.x]\ntask='t'\nschedule='61 3 * * *'", ":3: cron.x.schedule must be a cron expression ("),
        ("[cron.x]\ntask='t'\nschedule='0 0 30 2 *'", ":3: cron.x.schedule must be a schedule that ever comes"),
        ("[cron.x]\nschedule='0 3 * * *'", ':2: cron.x.schedule needs either task = "…" or kind = "…" beside it'),
        ("[cron.x]\ntask='t'\nschedule='0 3 * * *'\nargs=[1]\npayload=2", ":4: cron.x.args and payload are both given"),
        ("[cron.x]\ntask='t'\nschedule='0 3 * * *'\npayload={a=1979-05-27}", ":4: cron.x.payload must be made of what"),
        (
            "[cron.x]\ntask='t'\nschedule='0 3 * * *'\ntimezone='Europe/Berlim'",
            'a time zone, such as "Europe/Berlin", not',
        ),
        ("[cron.x]\ntask='t'\nschedule='0 3 * * *'\ntimezone='Europe'", ":4: cron.x.timezone must be the name"),
        ("[limits.x]\ncapacity=0\nrefill_per_sec=1", ":2: limits.x.capacity must be a whole number from 1 to"),
        ("[web]\nport = 70000", ":2: web.port must be a whole number from 0 to 65535, not 70000"),
        ("[web]\ntoken_hash = 'hunter2'", "digits of the token's SHA-256, not ***"),
        ("[faktory]\npassword = 12", ":2: faktory.password must be text, not ***"),
        ("[logging]\nfile = ''", ":2: logging.file must be text that is not empty, not ''"),
        ("logging = 1", ":1: logging must be a table: [logging], not 1"),
        ("cron = 1", ":1: cron must be tables: [cron.NAME], not 1"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(load: Load, text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert said in str(caught.value)
    assert str(caught.value).startswith("forge.toml:")
    assert "hunter2" not in str(caught.value)


def test_brackets_without_end_are_no_crash(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"^forge\.toml"):
        load("a = " + "[" * 100_000)


def test_variables_win_over_the_file_and_are_checked_like_it(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "FORGE_SHUTDOWN_TIMEOUT": "7.5",
        "FORGE_MODULES": "a, b.c",
        "FORGE_MAX_PAYLOAD": "2MB",
        "FORGE_LOGGING_LEVEL": "error",
        "FORGE_FAKTORY_PASSWORD": "hunter2",
        "FORGE_WEB_PORT": "tcp://10.0.0.1:80",
    }.items():
        monkeypatch.setenv(name, text)
    found = load("shutdown_timeout = 1\nmodules = ['x']\n")
    assert (found.shutdown_timeout, found.modules, found.max_payload) == (7.5, ("a", "b.c"), 2_000_000)
    assert found.logging.level == "error"
    assert found.faktory == config.FaktoryConfig(password="hunter2"), "a variable is as good as the table"
    assert found.web is None, "what Kubernetes sets for a service called forge-web is not meant"
    assert found.origin["shutdown_timeout"] == "FORGE_SHUTDOWN_TIMEOUT"
    assert found.origin["logging.level"] == "FORGE_LOGGING_LEVEL"
    monkeypatch.setenv("FORGE_MAX_CRASHES", "many")
    with pytest.raises(ConfigError) as caught:
        load("")
    assert str(caught.value) == "FORGE_MAX_CRASHES: max_crashes must be a whole number from 1 to 1000, not 'many'"


def test_the_variable_chooses_queues_and_the_file_their_settings(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_QUEUES", " mail, ,slack,mail")
    found = load("[queues.default]\n[queues.mail]\nmax_workers = 3\n")
    assert found.declared_queues() == {"mail": config.QueueConfig(max_workers=3), "slack": config.QueueConfig()}
    assert (found.origin["queues.mail"], found.origin["queues.mail.max_workers"]) == ("FORGE_QUEUES", "forge.toml:3")
    assert not [key for key in found.origin if key.startswith("queues.default")]
    monkeypatch.setenv("FORGE_QUEUES", "a\x01")
    with pytest.raises(ConfigError, match=r"^FORGE_QUEUES: a queue's name must be"):
        load("")


def test_no_queue_is_an_error_only_for_who_asks_for_them(load: Load) -> None:
    with pytest.raises(ConfigError, match=r"add \[queues.default\] to forge.toml, or set FORGE_QUEUES=default,mail"):
        load("").declared_queues()


def test_nothing_secret_is_shown_and_everything_has_an_origin(load: Load) -> None:
    entries = list(config.shown(load(FULL)))
    assert "hunter2" not in str(entries)
    values = {".".join(entry.key): entry.value for entry in entries}
    assert values["pools.render.env"] == {"NODE_ENV": "production", "API_TOKEN": "***", "URL": "redis://u:***@h"}
    assert values["faktory.password"] == "***"
    assert all(entry.origin for entry in entries if not entry.head)


def test_a_queues_row_has_the_defaults_and_bounds_of_the_database() -> None:
    row = config.QueueConfig().row()
    assert row == {k: v for k, v in dataclasses.asdict(QueueSettings("q")).items() if k in QUEUE_KEYS}
    for end in ("low", "high"):
        extremes = {name: getattr(declared_settings(config.QueueConfig)[name].about, end) for name in row}
        check_settings("q", {name: value for name, value in extremes.items() if value is not None})


@pytest.mark.parametrize("name", ["", "a,b", "a\x00", "a\x7f", "\ud800", "x" * 256, "x" * 255, "a b", "é"])
def test_names_are_what_the_codec_takes(name: str) -> None:
    try:
        codec.check_name(name, "queue")
    except InvalidJob:
        assert checks.name(name)
    else:
        assert checks.name(name) is None


def test_the_page_documents_every_setting_as_it_is_declared() -> None:
    page = reference.PAGE.read_text("utf-8")
    assert reference.marked(page) == set(reference.sections())
    assert page == reference.written(page), "run: python -m tests.config.reference"
