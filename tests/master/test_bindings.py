"""Apps that are bound in code to another database than the pod's: who runs forge is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import TASKS, Project
from .test_reloading import reload

pytestmark = pytest.mark.impl_free

SAID = "the app of raw.kind and 12 more is bound to sqlite:///jobs.db in code, not to "
FORGE = str(Path(sys.executable).parent / "forge")


def bind(project: Project, app: str, more: str = "") -> None:
    """tasks.py with this app. Its time is set apart: bytecode of the same second would be taken for it."""
    path = project.folder / "tasks.py"
    path.write_text(TASKS.replace("app = Forge()", f"app = {app}") + more)
    later = path.stat().st_mtime + 100 + len(path.read_text())
    os.utime(path, (later, later))


def test_the_master_says_so_at_its_start_and_at_each_reload(project: Project) -> None:
    project.configure(1)
    bind(project, 'Forge("sqlite:///jobs.db")')
    pod = project.start()
    (line,) = [line for line in pod.lines if "is bound to" in line]
    assert SAID in line and "write Forge() there, or name that database with --database" in line
    reload(pod)
    assert sum(SAID in line for line in pod.lines) == 2
    bind(project, "Forge()")
    reload(pod)
    assert sum("is bound to" in line for line in pod.lines) == 2
    assert not (project.folder / "jobs.db").exists(), "nothing was opened to find out"


# As many projects do it, and the default of `disable_existing_loggers` is True.
QUIET = """

import logging.config
logging.config.dictConfig({"version": 1, "root": {"level": "CRITICAL", "handlers": []}})
logging.disable()
"""


def test_the_master_says_so_whatever_a_module_makes_of_logging(project: Project) -> None:
    bind(project, 'Forge("sqlite:///jobs.db")', QUIET)
    assert project.start().says(SAID)
    assert SAID in project.run("--check").stderr


def test_check_and_doctor_say_so(project: Project) -> None:
    bind(project, 'Forge("sqlite:///jobs.db")')
    checked = project.run("--check")
    assert (checked.returncode, checked.stdout) == (0, "ok: forge-master can start\n")
    assert SAID in checked.stderr
    doctor = subprocess.run(
        [FORGE, "doctor"], cwd=project.folder, env=project.env, capture_output=True, text=True, check=True
    )
    (line,) = [line for line in doctor.stdout.splitlines() if "is bound to" in line]
    assert line.startswith("warn   modules") and SAID in line


def test_of_several_apps_only_those_with_tasks_that_are_elsewhere_are_named(project: Project) -> None:
    more = """

other = Forge("postgresql://ann:secret@db.example/jobs")
only_to_enqueue = Forge("sqlite:///reports.db")


@other.task
def elsewhere() -> None:
    pass
"""
    bind(project, "Forge(os.environ['FORGE_DATABASE_URL'])", more)
    checked = project.run("--check")
    (line,) = [line for line in checked.stderr.splitlines() if "is bound to" in line]
    assert "the app of tasks.elsewhere is bound to postgresql://ann:***@db.example/jobs in code" in line
    assert "secret" not in checked.stderr


def test_another_schema_is_another_place_too(project_on_postgres: Project) -> None:
    bind(project_on_postgres, 'Forge(schema="theirs")')
    checked = project_on_postgres.run("--check")
    assert "is bound to the schema theirs in code, not to forge" in checked.stderr


def test_an_app_that_has_no_usable_database_is_named(project: Project) -> None:
    bind(project, 'Forge("mysql://ann:secret@h/jobs")')
    checked = project.run("--check")
    assert "the app of raw.kind and 12 more " in checked.stderr
    assert "secret" not in checked.stderr
