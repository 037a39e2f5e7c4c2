"""The pytest plugin, in small projects of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.impl_free

ROOT = Path(__file__).parent.parent

TASKS = """
from forge import Forge
app = Forge({url})

@app.task
def add(a: int, b: int) -> int:
    return a + b
"""
NOWHERE = "postgresql://nobody@127.0.0.1:1/production"


def write(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose database cannot be reached: a test that opened it would fail."""
    write(
        tmp_path,
        forge_DOT_toml=f'database = "{NOWHERE}"\nmodules = ["tasks"]\n',
        tasks_DOT_py=TASKS.format(url=""),
    )
    return tmp_path


def run(folder: Path, *words: str, autoload: bool = False, **env: str) -> tuple[dict[str, int], str]:
    """pytest there, as a user starts it: how many passed, failed and so on, and all it printed."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("FORGE_", "DATABASE_URL", "PYTEST"))}
    clean |= {name: os.environ[name] for name in ("FORGE_IMPL",) if name in os.environ}
    clean |= {"PYTHONPATH": str(ROOT), **env}
    if not autoload:
        clean["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        words = ("-p", "forge.testing.plugin", *words)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "-q", *words]
    done = subprocess.run(command, cwd=folder, env=clean, capture_output=True, text=True, timeout=100, check=False)
    counts = {}
    last = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""
    for part in last.partition(" in ")[0].split(", "):
        number, _, word = part.strip(" =").partition(" ")
        if number.isdigit():
            counts[word] = int(number)
    return counts, done.stdout + done.stderr


SUITE = """
import os, subprocess, sys
from forge import Forge
from forge.testing import assert_enqueued, inline, refute_enqueued
from tasks import add, app

def test_one(forge_app, forge_drain, forge_db):
    assert forge_app is app
    job = add.enqueue(2, 3)
    assert_enqueued(forge_app, add, args=(2, 3), count=1)
    assert forge_drain().outcomes == {"done": 1}
    assert job.result(timeout=5) == 5
    assert forge_db.startswith("sqlite:///")

def test_two_starts_empty(forge_app):
    refute_enqueued(forge_app)
    with inline(forge_app):
        assert add.enqueue(2, 3).result() == 5

def test_other_apps_and_other_programs_are_on_the_same_database(forge_app):
    for other in (Forge(), Forge("postgresql://nobody@127.0.0.1:1/other")):
        other.enqueue("x", {})
        other.close()
        assert other.storage is forge_app.storage
    forge_app.close()
    subprocess.run([sys.executable, "-c", "from tasks import add; add.enqueue(1, 2)"], check=True,
                   env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert len(list(forge_app.jobs())) == 3

def test_the_app_is_given_back():
    assert "FORGE_DATABASE_URL" not in os.environ
    assert app._lazy_storage.shown.startswith("postgresql:")
    assert not app._lazy_storage.is_lent
"""


@pytest.mark.parametrize("words", [[], ["-p", "forge.testing.plugin"]], ids=["autoload", "autoload and by name"])
def test_the_plugin_is_loaded_where_forge_is_installed(project: Path, words: list[str]) -> None:
    write(project, tests__test_it_DOT_py=SUITE)
    counts, out = run(project, "-p", "no:randomly", *words, autoload=True)
    assert counts == {"passed": 4}, out


def test_the_plugin_can_be_loaded_by_name_or_by_a_conftest(project: Path) -> None:
    write(project, tests__test_it_DOT_py=SUITE)
    counts, out = run(project)
    assert counts == {"passed": 4}, out
    write(project, conftest_DOT_py='pytest_plugins = ["forge.testing.plugin"]\n')
    counts, out = run(project)
    assert counts == {"passed": 4}, out


def test_the_configured_sqlite_file_is_never_touched(project: Path) -> None:
    write(project, forge_DOT_toml='database = "sqlite:///real.db"\nmodules = ["tasks"]\n', tests__test_it_DOT_py=SUITE)
    counts, out = run(project, "-k", "one or two")
    assert counts == {"passed": 2, "deselected": 2}, out
    counts, out = run(project, "-k", "one or two", DATABASE_URL=f"sqlite:///{project}/env.db")
    assert counts == {"passed": 2, "deselected": 2}, out
    assert not list(project.rglob("*.db"))


def test_usefixtures_guards_every_test_of_a_project(project: Path) -> None:
    write(
        project,
        pytest_DOT_ini="[pytest]\nusefixtures = forge_app\n",
        test_it_DOT_py="from tasks import add\ndef test_it():\n    assert add.enqueue(1, 2).status == 'pending'\n",
    )
    counts, out = run(project)
    assert counts == {"passed": 1}, out


def test_an_option_names_the_app_where_there_are_several_or_no_settings(project: Path) -> None:
    write(
        project,
        forge_DOT_toml='modules = ["tasks", "more"]\n',
        more_DOT_py=TASKS.format(url=repr(NOWHERE)),
        test_it_DOT_py=(
            "import more, tasks\ndef test_it(forge_app):\n    assert forge_app is more.app\n"
            "    assert more.add.enqueue(1, 2).status == tasks.add.enqueue(1, 2).status == 'pending'\n"
        ),
    )
    counts, out = run(project)
    assert counts == {"error": 1}, out
    assert "(tasks, more) have 2 apps with tasks, not 1; name it in the settings of pytest: forge_app_path =" in out
    counts, out = run(project, "-o", "forge_app_path=more:app")
    assert counts == {"passed": 1}, out
    (project / "forge.toml").unlink()
    counts, out = run(project, "-o", "forge_app_path=more:app", "-o", "pythonpath=.")
    assert counts == {"passed": 1}, out
    counts, out = run(project, "-o", "pythonpath=.")
    assert "no forge.toml in " in out
    counts, out = run(project, "-o", "forge_app_path=more:none", "-o", "pythonpath=.")
    assert 'forge_app_path = "more:none" names no Forge(); write it as "module:name"' in out


def test_a_module_that_cannot_be_imported_is_one_line(project: Path) -> None:
    write(project, tasks_DOT_py="import missing_thing\n", test_it_DOT_py="def test_it(forge_app): pass\n")
    counts, out = run(project)
    assert counts == {"error": 1}, out
    assert "forge_app: cannot import tasks: ModuleNotFoundError: No module named 'missing_thing' (tasks.py:1)" in out


def test_the_database_of_the_tests_can_be_a_postgresql(project: Path, pg_url: str) -> None:
    write(
        project,
        conftest_DOT_py=f"import pytest\n@pytest.fixture\ndef forge_db():\n    return {pg_url!r}\n",
        test_it_DOT_py=(
            "from tasks import add\ndef test_it(forge_app, forge_drain):\n"
            "    assert forge_app.storage.dialect == 'postgres'\n"
            "    job = add.enqueue(2, 3)\n    forge_drain()\n    assert job.result(timeout=5) == 5\n"
        ),
    )
    counts, out = run(project)
    assert counts == {"passed": 1}, out


def test_a_failed_assertion_shows_the_test_and_not_the_helper(project: Path) -> None:
    write(
        project,
        test_it_DOT_py=(
            "from forge.testing import assert_enqueued\nfrom tasks import add\n"
            "def test_it(forge_app):\n    add.enqueue(1, 2)\n    assert_enqueued(forge_app, add, args=(2, 3))\n"
        ),
    )
    counts, out = run(project)
    assert counts == {"failed": 1}, out
    assert "E       AssertionError: no job was enqueued as tasks.add(2, 3); enqueued were:" in out
    assert "E         tasks.add(1, 2) to queue default, pending" in out
    assert "asserting.py" not in out
