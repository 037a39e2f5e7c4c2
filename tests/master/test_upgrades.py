"""A deployment rolls: the database is migrated first, and pods and producers of the release before go on meanwhile.

The next release is this one with a migration more, which gives every table a column, as additive ones do.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import forge
from forge.storage.shared.migrations import migrations
from tests.master.conftest import Project, eventually
from tests.storage.helpers import TABLES

pytestmark = pytest.mark.impl_free
LATEST = len(migrations("postgres"))


def next_release(folder: Path, oldest: int) -> str:
    """A folder to import it from. `oldest` is the release that may run on its schema."""
    package = Path(forge.__file__).parent
    shutil.copytree(package, folder / "next" / "forge", ignore=shutil.ignore_patterns("__pycache__"))
    for dialect, prefix in (("postgres", "forge."), ("sqlite", "forge_")):
        added = [f"alter table {prefix}{table} add column later text;" for table in TABLES if exists(dialect, table)]
        added += [f"create table {prefix}later (id integer primary key);"]
        text = "\n".join([f"-- oldest: {oldest}", *added, ""])
        (folder / f"next/forge/storage/sql/{dialect}/migrations/{LATEST + 1:04}_later.sql").write_text(text)
    return str(folder / "next")


def exists(dialect: str, table: str) -> bool:
    prefix = "forge." if dialect == "postgres" else "forge_"
    return any(f"create table {prefix}{table} (" in each.sql for each in migrations(dialect))


def command(project: Project, *words: str, release: str = "") -> Any:
    env = project.env | ({"PYTHONPATH": os.pathsep.join([release, str(project.folder)])} if release else {})
    return subprocess.run(
        [sys.executable, "-m", *words],
        cwd=project.folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def enqueue(project: Project, n: int, release: str = "") -> str:
    """Done by a producer that starts anew; what it says beside the id."""
    done = command(project, "forge.cli", "enqueue", "tasks.add", str(n), "1", release=release)
    assert done.returncode == 0, done.stderr
    handle = project.app.get(done.stdout.strip())
    eventually(lambda: handle.status == "done")
    return str(done.stderr)


def test_the_release_before_goes_on_starts_and_enqueues_on_the_next_schema(project: Project, tmp_path: Path) -> None:
    release = next_release(tmp_path, LATEST)
    project.configure(1)
    running = project.start()
    assert enqueue(project, 1) == ""
    migrated = command(project, "forge.cli", "db", "migrate", release=release)
    assert migrated.stdout == f"applied {LATEST + 1:04} later\nschema is at {LATEST + 1}\n", migrated.stderr
    warning = f"the schema is at {LATEST + 1}, newer than this release, which knows {LATEST} and may run on it; upgrade"
    assert warning in enqueue(project, 2), "run by a pod that was there before"
    assert running.stop() == 0
    assert not [line for line in running.lines if "rror" in line]

    before = project.start()
    assert before.says(warning)
    assert enqueue(project, 3, release) == "", "of the next release, run by the one before"
    if project.url.startswith("sqlite"):
        assert before.stop() == 0  # a file has room for one master
    project.env["PYTHONPATH"] = os.pathsep.join([release, str(project.folder)])
    after = project.start()
    assert not after.says("newer than this release")
    del project.env["PYTHONPATH"]
    assert before.process.poll() == 0 or before.stop() == 0
    assert warning in enqueue(project, 4), "of the release before, run by the next one"
    assert after.stop() == 0
    for pod in (before, after):
        assert not [line for line in pod.lines if "rror" in line]

    assert "runs on it; upgrade" in command(project, "forge.cli", "db", "status").stdout
    assert command(project, "forge.cli", "db", "status").returncode == 0
    doctor = command(project, "forge.cli", "doctor").stdout
    assert warning in next(line for line in doctor.splitlines() if "schema" in line and line.startswith("warn"))
    assert command(project, "forge.cli", "db", "migrate").returncode == 0


def test_a_release_that_is_too_old_for_the_next_schema_ends_with_6(project: Project, tmp_path: Path) -> None:
    release = next_release(tmp_path, LATEST + 1)
    assert command(project, "forge.cli", "db", "migrate", release=release).returncode == 0
    said = (
        f"the schema is at {LATEST + 1} and needs a release that knows {LATEST + 1}, this one knows {LATEST}; upgrade"
    )
    for words in (["forge.cli.master"], ["forge.cli", "enqueue", "tasks.hang"], ["forge.cli", "db", "migrate"]):
        ended = command(project, *words)
        assert (ended.returncode, said in ended.stderr) == (6, True), (words, ended.stderr)
    eventually(lambda: command(project, "forge.cli.master", "--check", release=release).returncode == 0)
