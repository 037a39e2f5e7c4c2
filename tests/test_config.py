"""Where settings come from, and what is said when they are wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forge import config
from forge.errors import ConfigError, ExitCode

pytestmark = pytest.mark.impl_free


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory and no variables."""
    for name in [name for name in os.environ if name.startswith("FORGE_") or name == "DATABASE_URL"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


BYTES = 'a whole number of bytes from 1 to 15728640, or text such as "10MB"'
NAME_WITH_COMMA = (
    "forge.toml:1: a name under queues must be 1 to 255 characters without comma or control character, not 'a,b'"
)


def write(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "forge.toml"
    path.write_text(text, "utf-8")
    return path


def test_without_anything_the_database_is_a_file_in_the_current_directory() -> None:
    loaded = config.load()
    assert loaded == config.Config(origin=loaded.origin)
    assert set(loaded.origin.values()) == {"default"}
    assert loaded.database == "sqlite:///forge.db"


def test_flag_beats_forge_variable_beats_general_variable_beats_file_beats_default(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert config.database_url() == "sqlite:///forge.db"
    write(folder, 'database = "postgresql://file/a"\n')
    assert config.database_url() == "postgresql://file/a"
    monkeypatch.setenv("DATABASE_URL", "postgresql://general/b")
    assert config.database_url() == "postgresql://general/b"
    monkeypatch.setenv("FORGE_DATABASE_URL", "postgresql://forge/c")
    assert config.database_url() == "postgresql://forge/c"
    assert config.database_url("postgresql://flag/d") == "postgresql://flag/d"


def test_every_value_knows_its_origin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        folder,
        '# settings\nmodules = ["tasks", "more.tasks"]\n\ndatabase = "sqlite:///x.db"\n'
        "\n[queues.mail]\nmax_workers = 3\n",
    )
    monkeypatch.setenv("FORGE_SCHEMA", "jobs")
    loaded = config.load()
    said = {key: where for key, where in loaded.origin.items() if where != "default"}
    assert said == {
        "database": "forge.toml:4",
        "schema": "FORGE_SCHEMA",
        "modules": "forge.toml:2",
        "queues.mail": "forge.toml:6",
        "queues.mail.max_workers": "forge.toml:7",
    }
    assert loaded.modules == ("tasks", "more.tasks")
    assert loaded.schema == "jobs"
    assert loaded.queues == {"mail": config.QueueConfig(max_workers=3)}
    assert config.load(database="sqlite:///y.db", schema="z").origin["database"] == "--database"
    assert config.load(schema="z").schema == "z"


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORGE_DATABASE_URL", "")
    monkeypatch.setenv("DATABASE_URL", "sqlite:///general.db")
    assert config.database_url() == "sqlite:///general.db"


def test_the_file_is_found_from_a_folder_below(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(folder, 'database = "sqlite:///var/jobs.db"\n')
    below = folder / "a" / "b"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert config.find() == path
    assert config.find(folder) == path
    assert config.load().path == path
    assert config.load().database == f"sqlite:///{folder}/var/jobs.db", (
        "relative to the file, not to the current folder"
    )


def test_a_relative_path_in_a_variable_is_left_to_the_current_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(folder / "elsewhere", 'database = "sqlite:///file.db"\n')
    monkeypatch.setenv("DATABASE_URL", "sqlite:///here.db")
    assert config.load(path).database == "sqlite:///here.db"


@pytest.mark.parametrize("url", ["sqlite:////var/lib/forge.db", "sqlite:///:memory:", "postgresql://h/d"])
def test_urls_that_are_not_relative_paths_stay_as_they_are(folder: Path, url: str) -> None:
    assert config.load(write(folder, f'database = "{url}"\n')).database == url


def test_a_variable_names_the_file_unless_the_caller_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    named = write(folder / "named", 'schema = "named"\n')
    given = write(folder / "given", 'schema = "given"\n')
    write(folder, 'schema = "found"\n')
    assert config.load().schema == "found"
    monkeypatch.setenv("FORGE_CONFIG", str(named))
    assert config.load().schema == "named"
    assert config.load(given).schema == "given"
    monkeypatch.setenv("FORGE_CONFIG", "missing.toml")
    with pytest.raises(ConfigError, match=r"no file missing\.toml"):
        config.load()


def test_the_default_database_stands_beside_the_file(folder: Path) -> None:
    path = write(folder / "project", 'modules = ["tasks"]\n')
    assert config.load(path).database == f"sqlite:///{folder}/project/forge.db"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('modules = ["a"]\ndatabse = "x"\n', "forge.toml:2: unknown key databse; did you mean database?"),
        ("\n\n[queue.mail]\nmax_workers = 1\n", "forge.toml:3: unknown key queue; did you mean queues?"),
        (
            "[queues.mail]\nmax_worker = 1\n",
            "forge.toml:2: unknown key queues.mail.max_worker; did you mean max_workers?",
        ),
        ("[queues]\nmail = 3\n", "forge.toml:2: queues.mail must be a table: [queues.mail], not 3"),
        ('[queues."a,b"]\n', NAME_WITH_COMMA),
        ('max_payload = "big"\n', f"forge.toml:1: max_payload must be {BYTES}, not 'big'"),
        ("max_payload = true\n", f"forge.toml:1: max_payload must be {BYTES}, not True"),
        (
            'modules = "tasks"\n',
            "forge.toml:1: modules must be a list of text, such as [\"tasks\"], not 'tasks'",
        ),
        ("database = 5\n", "forge.toml:1: database must be text, not 5"),
        ("web = 1\n", "forge.toml:1: web must be a table: [web], not 1"),
    ],
)
def test_a_wrong_key_or_value_is_one_line_with_its_place(folder: Path, text: str, said: str) -> None:
    write(folder, text)
    with pytest.raises(ConfigError) as caught:
        config.load()
    assert str(caught.value) == said
    assert caught.value.exit_code == ExitCode.CONFIG


def test_a_key_unlike_any_other_lists_what_there_is(folder: Path) -> None:
    write(folder, "zzz = 1\n")
    with pytest.raises(
        ConfigError, match=r"unknown key zzz; there are cancel_grace, capacity, commands, cron, database"
    ):
        config.load()


@pytest.mark.parametrize(("text", "line"), [("a = 1\nb = [\n", 3), ("a = 1\nb b\nc = 2\n", 2), ('a = "x\n', 1)])
def test_broken_toml_is_one_line_with_its_place(folder: Path, text: str, line: int) -> None:
    write(folder, text)
    with pytest.raises(ConfigError) as caught:
        config.load()
    assert str(caught.value).startswith(f"forge.toml:{line}: ")
    assert "\n" not in str(caught.value)


def test_a_file_that_was_asked_for_must_be_there(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"no file other\.toml; `forge init DIR` makes one"):
        config.load(Path("other.toml"))
    (folder / "latin.toml").write_bytes(b"# \xe9\n")
    with pytest.raises(ConfigError, match=r"cannot read latin\.toml: it is not UTF-8 text"):
        config.load(Path("latin.toml"))
    with pytest.raises(ConfigError, match=r"cannot read .*: Is a directory"):
        config.load(folder)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:hunter2@host:5432/db", "postgresql://me:***@host:5432/db"),
        ("postgresql://me:hunt/er@2:x?@host/db", "postgresql://me:***@host/db"),
        ("postgresql://:hunter2@host/db", "postgresql://:***@host/db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://host:5432/db", "postgresql://host:5432/db"),
        ("postgresql:///db?host=/run&password=hunter2&user=me", "postgresql:///db?host=/run&password=***&user=me"),
        ("postgresql://h/db?sslpassword=hunter2", "postgresql://h/db?sslpassword=***"),
        ("host=h password='hunter 2' dbname=d", "host=h password=*** dbname=d"),
        ("sqlite:///forge.db", "sqlite:///forge.db"),
    ],
)
def test_a_shown_url_has_no_secret_in_it(url: str, shown: str) -> None:
    assert config.mask(url) == shown


def test_pieces_of_a_password_that_a_driver_quotes_are_scrubbed() -> None:
    url = "postgresql://me:hun/ter2@host/db?sslpassword=letmein"
    text = f'cannot parse {url}: invalid integer value "hun" for "port"; ter2 letmein'
    assert config.scrub(text, [url]) == (
        'cannot parse postgresql://me:***@host/db?sslpassword=***: invalid integer value "***" for "port"; *** ***'
    )
