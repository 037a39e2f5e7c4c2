"""No password is shown: not in `ps`, not in a message, whatever a URL looks like."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forge import Dead, Forge, config, early
from forge.cli import master
from forge.errors import ExitCode, ForgeError
from forge.inline import drain
from forge.storage import open_storage
from tests.cli.conftest import Shell
from tests.master.conftest import eventually, making

pytestmark = pytest.mark.impl_free

SECRET = "hunter2forge"
BIN = Path(sys.executable).parent

# A password anywhere in something that was meant to be a URL or DSN.
MALFORMED = [
    "postgresql://user:pa {}@host/db",
    "postgres:/user:{}@host",
    "postgresql:user:{}@host",
    "user:{}@host/db",
    "//user:{}@host/db",
    "postgresql://user:{}",
    "postgresql://user:{}/db",
    "postgresql://user:{}@",
    "postgresql://user:12/{}@host/db",
    "postgresql://user:pa@{}@host:badport/db",
    "postgresql://user:pa@{}@host/db",
    "postgresql://us/er:{}@host/db",
    "postgresql://user:x?a={}@host/db",
    "postgresql://user:x?user={}@host/db",
    "postgresql://user%3A{}@host/db",
    "postgresql://user:a%{}@host/db",
    "postgresql://host/db?pasword={}",
    "postgresql://host/db?pass%77ord={}",
    "postgresql://[{}/db",
    "host=h password={} x dbname=d",
    "host=h password = 'x {}",
    "host=h password = 'x\\' {}' dbname=d",
    "host=h pasword={}",
    "dbname=d password = 'x {}'",
    "sqlite:/{}@x",
    "sqlite:///forge.db?key={}",
    "{}",
]


@pytest.mark.parametrize("form", MALFORMED)
def test_a_malformed_url_is_shown_without_its_password(form: str) -> None:
    assert SECRET not in config.mask(form.format(SECRET))


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("postgresql://me:hun@ter/2@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("postgresql://a:1,b:2/db?user=me", "postgresql://a:1,b:2/db?user=me"),
        ("postgresql://[::1]:5432/db", "postgresql://[::1]:5432/db"),
        ("postgresql://host/db?sslmode=require&what=hunter2", "postgresql://host/db?sslmode=require&what=***"),
        ("postgresql:///db?password=&hunter2=", "postgresql:///db?password=***&***"),
        ("postgresql:///db?password=a&hunter2=1&host=h", "postgresql:///db?password=***&***&host=h"),
        ("odd:///db?password=&hunter2", "odd:///db?password=***&***"),
        ("postgresql://user:hunter2", "postgresql://***"),
        ("user:hunter2@host/db", "***"),
        ("host=h password = 'hunter 2' dbname=d", "host=h password=*** dbname=d"),
        ("sqlite:////srv/me@home:1/forge.db?driver=apsw", "sqlite:////srv/me@home:1/forge.db?driver=apsw"),
        ("redis://u:hunter2@h/0", "redis://u:***@h/0"),
    ],
)
def test_of_a_url_everything_is_shown_that_is_understood(url: str, shown: str) -> None:
    assert config.mask(url) == shown


# Texts that nothing around a password has by chance.
passwords = st.text(min_size=1, max_size=12).map(lambda text: f"Xq7{text}Zk9")
junk = st.text(alphabet=" /:@?#=&'\"\\%[],.ab1\n", max_size=8)
FORMS = [
    "postgresql://user:{}@host/db",
    "postgresql://user:{}@host:5432,other/db?sslmode=require",
    "postgres:/user:{}@host",
    "user:{}@host/db",
    "host=h password={}",
    "host=h password='{}' user=u",
    "postgresql:///db?password={}",
    "redis://:{}@cache",
]


@settings(max_examples=1000, deadline=None)
@given(password=passwords, before=junk, after=junk, inside=junk, form=st.sampled_from(FORMS))
def test_whatever_surrounds_it_a_password_is_never_shown(
    password: str, before: str, after: str, inside: str, form: str
) -> None:
    url = before + form.format(inside + password) + after
    assert password not in config.mask(url)
    # A driver quotes pieces of what it could not read.
    readable = config.well_formed(url) or "redis:" in url
    pieces = [] if readable else re.split(r"[\s/?#:@=&'\"]+", url)
    assert password not in config.scrub(f'invalid port number: "{url}": {" ".join(pieces)}', [url])


@pytest.mark.parametrize("form", MALFORMED)
def test_a_storage_refuses_it_without_a_word_of_it(form: str) -> None:
    if form == "{}":
        return
    with pytest.raises(ForgeError) as caught:
        open_storage(form.format(SECRET)).schema_state()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("form", MALFORMED)
def test_no_command_shows_it(forge: Shell, project: Path, form: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = form.format(SECRET)
    toml = (project / "forge.toml").read_text()
    for words in (("config", "show"), ("queues",), ("doctor",)):
        ran = forge(*words, "--database", url)
        assert SECRET not in ran.out + ran.err
    master.main(["--check", "--database", url])
    said = capsys.readouterr()
    assert SECRET not in said.out + said.err
    (project / "forge.toml").write_text(f"database = '''{url}'''\nlisten_database = '''{url}'''\n{toml}")
    ran = forge("config", "show")
    assert SECRET not in ran.out + ran.err


def test_a_driver_that_quotes_the_url_is_not_passed_on(forge: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    assert forge.fails(ExitCode.CONFIG, "queues", "--database", f"postgresql://me:a%{SECRET}@h/db").startswith(
        "the database URL cannot be read; use postgresql://user:password@host:5432/name, and in the password %40 for @"
    )


# -- what `ps` shows -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["-c", "forge.toml"], "-c forge.toml"),
        (["--database", f"postgresql://u:{SECRET}@h/d", "--check"], "--database *** --check"),
        ([f"--database=postgresql://u:{SECRET}@h/d"], "--database=***"),
        (["--datab", SECRET], "--datab ***"),
        ([f"--d={SECRET}"], "--d=***"),
        (["queues", f"redis://{SECRET}"], "queues ***"),
        (["queues", f"--x=redis://{SECRET}"], "queues --x=***"),
        (["--database"], "--database"),
    ],
)
def test_a_title_has_no_database_in_it(words: list[str], shown: str) -> None:
    assert early.title(words) == shown


def cmdline(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()


def test_a_running_master_and_its_processes_show_no_password(tmp_path: Path, pg_url: str) -> None:
    for project in making(tmp_path, pg_url):
        url = pg_url.replace("postgres:@", f"postgres:{SECRET}@")
        assert SECRET in url
        del project.env["FORGE_DATABASE_URL"]
        pod = project.start("--database", url)
        assert cmdline(pod.process.pid) == "forge-master -c forge.toml --database ***"
        assert Path(f"/proc/{pod.process.pid}/comm").read_text() == "forge-master\n"
        for pid in pod.children():
            assert SECRET not in cmdline(pid)
        job: Any = project.enqueue("add", 2, 3)
        assert job.result(timeout=30) == 5
        assert pod.stop() == 0
        assert not any(SECRET in line for line in pod.lines)


def test_the_title_is_set_before_the_imports_that_take_time(tmp_path: Path) -> None:
    hold = (
        "import os, sys, time\n"
        "class Hold:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'orjson':\n"
        f"            open({str(tmp_path / 'held')!r}, 'w').close()\n"
        "            time.sleep(600)\n"
        "sys.meta_path.insert(0, Hold)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(hold)
    for words in (["forge-master"], ["forge", "top"]):
        (tmp_path / "held").unlink(missing_ok=True)
        process = subprocess.Popen(
            [BIN / words[0], *words[1:], "--database", f"postgresql://u:{SECRET}@h/d"],
            env={"PYTHONPATH": str(tmp_path)},
            cwd=tmp_path,
        )
        try:
            eventually((tmp_path / "held").exists)
            assert cmdline(process.pid) == f"{' '.join(words)} --database ***"
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def test_a_command_that_has_nothing_to_hide_keeps_its_title(tmp_path: Path) -> None:
    assert early.title(["top", "--interval", "2"]) == "top --interval 2"


def test_an_error_of_a_job_does_nothing_to_a_terminal(forge: Shell, project: Path) -> None:
    with Forge(f"sqlite:///{project}/forge.db") as app:

        @app.task(name="bad")
        def bad() -> None:
            raise Dead("\x1b[2J\x9b31m\nid  forged")

        job = bad.enqueue()
        drain(app)
        for words in (("show", job.id), ("show", job.id, "-v"), ("jobs",), ("jobs", "--status", "dead")):
            ran = forge(*words)
            assert "\x1b" not in ran.out and "\x9b" not in ran.out


def test_forge_show_and_forge_jobs_hide_secret_fields(forge: Shell, project: Path) -> None:
    with Forge() as app:
        id = app.enqueue("mail", {"to": "bob", "smtp": {"password": SECRET}}).id
    assert forge("show", id, "-o", "json").json["payload"] == {"to": "bob", "smtp": {"password": "***"}}
    assert SECRET not in forge.ok("show", id, "-v") + forge.ok("jobs", "-o", "json")
