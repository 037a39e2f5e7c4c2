"""Starting a project, its settings, and the doctor."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from forge import __version__
from forge.errors import ExitCode
from tests.cli.conftest import Shell

pytestmark = pytest.mark.impl_free


def test_init_makes_a_project_that_works_as_it_is(forge: Shell, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = forge.ok("init", "hello")
    assert out == "created forge.toml, tasks.py, tests/test_tasks.py\nnext:  forge-master -c forge.toml\n"
    monkeypatch.chdir(folder / "hello")
    assert [line.split()[0] for line in forge.ok("tasks").splitlines()] == ["task", "tasks.add", "tasks.flaky"]
    assert forge("doctor").code == 0
    assert not (folder / "hello" / "forge.db").exists(), "looking changes nothing"
    forge.ok("enqueue", "tasks.add", 2, 3)
    assert (folder / "hello" / "forge.db").exists()


def test_the_tests_of_a_new_project_pass_without_any_server(forge: Shell, folder: Path) -> None:
    forge.ok("init", "hello")
    root = Path(__file__).parents[2]
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests"],
        cwd=folder / "hello",
        env={"PYTHONPATH": str(root), "PATH": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    assert "2 passed" in ran.stdout


def test_init_never_overwrites(forge: Shell, folder: Path) -> None:
    (folder / "tasks.py").write_text("mine")
    assert forge.fails(ExitCode.USAGE, "init").startswith(". has tasks.py already; choose another directory")
    assert [path.name for path in folder.iterdir()] == ["tasks.py"]
    assert forge.fails(ExitCode.USAGE, "init", "tasks.py").startswith("cannot write tasks.py")


def test_config_show_says_what_is_in_force_and_why(
    forge: Shell, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://me:hunter2@db/jobs")
    lines = forge.ok("config", "show", "--origin").splitlines()
    assert lines[:4] == [
        'database = "postgresql://me:***@db/jobs"   # DATABASE_URL',
        'schema = "forge"   # default',
        'modules = ["tasks"]   # forge.toml:1',
        "max_payload = 1048576   # default",
    ]
    assert "# pid_file is not set   # default" in lines
    queue = lines.index("[queues.default]   # forge.toml:3")
    assert lines[queue + 1 : queue + 3] == ["max_workers = 4   # forge.toml:4", 'worker = "process"   # default']
    found = forge("config", "show", "--origin", "-o", "json").json
    assert (found["database"], found["queues"]["default"]["max_workers"]) == ("postgresql://me:***@db/jobs", 4)
    assert found["origin"]["queues.default.max_workers"] == "forge.toml:4"
    assert found["path"] == str(project / "forge.toml")


def test_secrets_in_any_table_are_masked_and_what_is_shown_is_a_file_that_can_be_read(
    forge: Shell, folder: Path
) -> None:
    (folder / "forge.toml").write_text(
        '[faktory]\npassword = "hunter2"\n[pools.x]\nkind = "k"\nargv = ["a", "--password=hunter2"]\n'
        'env = { API_KEY = "hunter2", "odd name" = "redis://u:hunter2@h" }\n[queues."odd name"]\npaused = true\n'
        '[cron.x]\nkind = "k"\nschedule = "0 3 * * *"\npayload = { secrets = ["hunter2"], n = [{ a = 1 }] }\n'
    )
    for words in (["config", "show"], ["config", "show", "-o", "json"]):
        out = forge.ok(*words)
        assert "hunter2" not in out
    shown = forge.ok("config", "show")
    assert '[queues."odd name"]\n' in shown
    (folder / "forge.toml").write_text(shown)
    assert forge.ok("config", "show") == shown


def test_options_may_stand_before_the_command(forge: Shell) -> None:
    assert forge.ok("--database", "sqlite:///x.db", "config", "show").startswith('database = "sqlite:///x.db"')
    assert forge.ok("-o", "json", "config", "show").startswith("{")
    assert forge.ok("-o", "json", "config", "-o", "text", "show").startswith("database = ")


def test_tasks_lists_what_the_modules_define(forge: Shell, project: Path) -> None:
    assert forge.ok("tasks").splitlines() == [
        "task         queue     attempts  timeout  where",
        "raw          raw              5    600 s  tasks.py:16",
        "tasks.add    (routed)         5    600 s  tasks.py:6",
        "tasks.flaky  mail             2    600 s  tasks.py:11",
    ]
    found = {task["kind"]: task for task in forge("tasks", "-o", "json").json}
    assert found["tasks.flaky"]["queue"] == "mail"


def test_tasks_without_modules_says_what_to_do(forge: Shell, folder: Path) -> None:
    assert forge.ok("tasks") == 'no modules are configured; name them in forge.toml: modules = ["tasks"]\n'
    (folder / "empty_tasks.py").write_text("")
    (folder / "forge.toml").write_text('modules = ["empty_tasks"]\n')
    assert forge.ok("tasks") == "no tasks in empty_tasks; decorate a function with @app.task\n"


def test_two_apps_with_one_kind_are_refused(forge: Shell, folder: Path) -> None:
    for name in ("one_app", "two_app"):
        (folder / f"{name}.py").write_text(
            "from forge import Forge\napp = Forge()\n@app.task(name='same')\ndef f(): pass\n"
        )
    (folder / "forge.toml").write_text('modules = ["one_app", "two_app"]\n')
    assert forge.fails(ExitCode.CONFIG, "tasks").startswith("two apps have the kind same: ")


def checks(forge: Shell, *words: object) -> dict[str, str]:
    return {check["about"]: check["level"] for check in forge("doctor", "-o", "json", *words).json}


@pytest.fixture
def durable(url: str) -> Iterator[str]:
    """The tests' own PostgreSQL does not wait for the disk; for the doctor it does."""
    if not url.startswith("postgres"):
        yield url
        return
    with psycopg.connect(url, autocommit=True) as conn:
        for fsync in ("on", "off"):
            conn.execute(f"alter system set fsync = {fsync}")
            conn.execute("select pg_reload_conf()")
            while conn.execute("show fsync").fetchone() != (fsync,):
                time.sleep(0.01)
            if fsync == "on":
                yield url


def test_the_doctor_finds_a_healthy_database(forge: Shell, project: Path, durable: str) -> None:
    url = durable
    ran = forge("doctor", "--database", url)
    assert ran.code == 0
    found = checks(forge, "--database", url)
    for about in ("python", "config", "database", "durability", "schema", "modules"):
        assert found[about] == "ok", ran.out
    assert "tasks: 3 tasks" in ran.out


def test_the_doctor_ends_with_the_code_of_the_first_error_and_goes_on_looking(
    forge: Shell, project: Path, empty_pg_url: str
) -> None:
    ran = forge("doctor", "--database", empty_pg_url)
    assert ran.code == ExitCode.SCHEMA
    assert "error  schema      the database has no schema forge yet; run: forge db migrate" in ran.out
    assert checks(forge, "--database", empty_pg_url)["modules"] == "ok"
    nowhere = "postgresql://me@127.0.0.1:1/jobs"
    assert forge("doctor", "--database", nowhere).code == ExitCode.DATABASE
    assert "schema" not in checks(forge, "--database", nowhere), "one cause, one line"


def test_the_doctor_reports_broken_settings_and_modules(forge: Shell, project: Path) -> None:
    (project / "tasks.py").write_text("import missing_thing\n")
    ran = forge("doctor")
    assert ran.code == ExitCode.CONFIG
    assert "error  modules     cannot import tasks: ModuleNotFoundError" in ran.out
    (project / "forge.toml").write_text("x = 1\n")
    assert checks(forge) == {"python": "ok", "extension": checks(forge)["extension"], "config": "error"}


def test_the_doctor_warns_of_a_file_that_others_can_read(forge: Shell, folder: Path) -> None:
    forge.ok("db", "migrate")
    assert "file mode" not in checks(forge)
    (folder / "forge.db").chmod(0o644)
    assert checks(forge)["file mode"] == "warn"


def test_the_doctor_names_a_limit_of_the_host_that_is_too_low(
    forge: Shell, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checks(forge)["limits"] == "ok"
    monkeypatch.setattr(resource, "getrlimit", lambda _: (20, 40))
    ran = forge("doctor")
    assert ran.code == ExitCode.CONFIG
    assert "error  limits      the limit of open files is 40, and a pod of these settings needs " in ran.out


def test_version_names_release_and_fast_path(forge: Shell) -> None:
    out = forge.ok("version")
    assert out.startswith(f"forge {__version__} (")
    assert forge("--version") == (0, out, "")
    assert forge("version", "-o", "json").json["forge"] == __version__
