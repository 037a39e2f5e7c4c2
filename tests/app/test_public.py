"""The public face: what `import forge` gives, and what it does not load."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata

import pytest

import forge
import forge.app

pytestmark = pytest.mark.impl_free


@pytest.mark.parametrize("module", [forge, forge.app], ids=lambda module: module.__name__)
def test_all_is_sorted_and_true(module: object) -> None:
    names: list[str] = module.__all__  # type: ignore[attr-defined]
    assert names == sorted(set(names))
    for name in names:
        assert getattr(module, name) is not None


def test_the_face_has_no_name_it_does_not_declare() -> None:
    submodules = {name for name in vars(forge) if f"forge.{name}" in sys.modules}
    helpers = {"annotations", "metadata"}
    # @: what pytest adds to the modules of a distribution that has a plugin.
    public = {name for name in vars(forge) if not name.startswith(("_", "@"))} - submodules - helpers
    assert public == set(forge.__all__) - {"__version__"}


def test_every_error_is_public() -> None:
    import forge.errors

    assert set(forge.errors.__all__) - {"ExitCode"} <= set(forge.__all__)


def test_the_version_is_that_of_the_distribution_or_says_that_it_is_unknown() -> None:
    try:
        assert forge.__version__ == metadata.version("forge-jobs")
    except metadata.PackageNotFoundError:
        assert forge.__version__ == "0+unknown"


def test_importing_forge_loads_no_database_driver_and_no_event_loop_library() -> None:
    program = (
        "import sys, forge; forge.Forge();"
        "print([m for m in ('psycopg', 'apsw', 'sqlite3', 'sqlalchemy', 'django', 'asyncpg') if m in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
