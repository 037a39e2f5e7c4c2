"""The rooms of the storage: a contract, what both databases share, and two databases that have the same files."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

pytestmark = pytest.mark.impl_free

FORGE = Path(__file__).parent.parent.parent / "forge"
STORAGE = FORGE / "storage"
DIALECTS = ("postgres", "sqlite")

# Files that one database has and the other has not, and why.
ONE_HAS_IT = {
    "postgres": {
        "bulk.py": "COPY in binary; SQLite's insert is as fast as it gets",
        "pool.py": "SQLite has two connections, one that writes and one that reads",
        "watch.py": "a server can fall silent, a file cannot",
        "wire.py": "the formats of the protocol",
    },
    "sqlite": {
        "drivers.py": "a process may have either of two libraries; PostgreSQL has psycopg",
    },
}
WIDEST = 120  # columns
LARGEST_INIT = 80  # lines: a package says what it is, the rest is in its files


def names(folder: Path, suffix: str) -> set[str]:
    return {path.name for path in folder.iterdir() if path.suffix == suffix}


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (FORGE / folder).rglob("*.py"))


def shown(path: Path) -> str:
    return str(path.relative_to(FORGE.parent))


def test_both_databases_have_the_same_files_but_for_those_with_a_reason() -> None:
    found = {dialect: names(STORAGE / dialect, ".py") for dialect in DIALECTS}
    both = found["postgres"] & found["sqlite"]
    alone = {dialect: found[dialect] - both for dialect in DIALECTS}
    assert alone == {dialect: set(ONE_HAS_IT[dialect]) for dialect in DIALECTS}


def test_both_databases_have_the_same_files_of_sql_and_the_same_migrations() -> None:
    for part in ("", "migrations"):
        postgres, sqlite = (names(STORAGE / "sql" / dialect / part, ".sql") for dialect in DIALECTS)
        assert postgres == sqlite
        assert postgres


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_file_of_sql_is_named_like_the_module_that_runs_it(dialect: str) -> None:
    sql, python = names(STORAGE / "sql" / dialect, ".sql"), names(STORAGE / dialect, ".py")
    assert {name.removesuffix(".sql") for name in sql} <= {name.removesuffix(".py") for name in python}


@pytest.mark.parametrize("path", sorted((STORAGE / "sql").rglob("*.sql")), ids=shown)
def test_sql_can_be_read_without_scrolling_sideways(path: Path) -> None:
    lines = enumerate(path.read_text("utf-8").splitlines(), 1)
    assert [f"line {number} has {len(line)} columns" for number, line in lines if len(line) > WIDEST] == []


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_statement_is_run_by_somebody(dialect: str) -> None:
    text = "\n".join(path.read_text("utf-8") for part in (dialect, "shared") for path in (STORAGE / part).glob("*.py"))
    statements = "\n".join(path.read_text("utf-8") for path in (STORAGE / "sql" / dialect).glob("*.sql"))
    known = re.findall(r"^-- name: (\w+)$", statements, re.MULTILINE)
    parts = re.findall(r"^-- part: (\w+)$", statements, re.MULTILINE)
    assert [name for name in known if not re.search(rf"\b{name}\b", text)] == []
    assert [name for name in parts if f"{{{name}}}" not in statements] == []


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom):
            yield node.module or ""
        elif isinstance(node, ast.Import):
            yield from (name.name for name in node.names)


@pytest.mark.parametrize(
    ("part", "others"),
    [
        # But for the marks that a dispatcher keeps from claim to claim, which `claim` takes.
        ("contract", {"forge.storage.contract", "forge.storage.shared.low_water"}),
        ("shared", {"forge.storage.contract", "forge.storage.shared"}),
        ("postgres", {"forge.storage.contract", "forge.storage.shared", "forge.storage.postgres"}),
        ("sqlite", {"forge.storage.contract", "forge.storage.shared", "forge.storage.sqlite"}),
    ],
)
def test_the_contract_knows_no_database_and_neither_database_knows_the_other(part: str, others: set[str]) -> None:
    for path in (STORAGE / part).glob("*.py"):
        of_storage = {name for name in imported(path) if name.startswith("forge.storage")}
        strange = {name for name in of_storage if not any(f"{name}.".startswith(f"{other}.") for other in others)}
        assert strange == set(), shown(path)


def verbs() -> Iterator[tuple[str, ast.FunctionDef]]:
    for path in sorted((STORAGE / "contract").glob("*.py")):
        for each in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(each, ast.ClassDef) and any(ast.unparse(base) == "abc.ABC" for base in each.bases):
                yield from ((each.name, verb) for verb in each.body if isinstance(verb, ast.FunctionDef))


def test_every_verb_of_the_contract_says_what_it_does() -> None:
    told = {f"{owner}.{verb.name}": ast.get_docstring(verb) for owner, verb in verbs() if verb.name[0] != "_"}
    assert len(told) > 80
    assert [name for name, words in told.items() if not words or len(words.split()) < 2] == []


def test_a_verb_that_every_database_must_have_has_no_body_in_the_contract() -> None:
    abstract = {f"{owner}.{verb.name}": verb for owner, verb in verbs() if verb.decorator_list}
    assert {ast.unparse(each) for verb in abstract.values() for each in verb.decorator_list} == {"abc.abstractmethod"}
    assert [name for name, verb in abstract.items() if len(verb.body) > 1] == []


def test_no_two_classes_have_one_name() -> None:
    found = defaultdict(list)
    for path in modules("storage", "cluster", "config"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                found[node.name].append(shown(path))
    assert {name: where for name, where in found.items() if len(where) > 1} == {}


@pytest.mark.parametrize("path", [each for each in modules("storage") if each.name == "__init__.py"], ids=shown)
def test_a_package_says_what_it_is_and_little_more(path: Path) -> None:
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= LARGEST_INIT
    assert ast.get_docstring(ast.parse(text))


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("subject", ["budgets", "leases", "lines", "metrics", "schedules", "shares"])
def test_a_subject_has_one_name_from_the_contract_to_the_sql(subject: str, dialect: str) -> None:
    store = f"{subject.removesuffix('s').capitalize()}Store"
    contract = getattr(import_module(f"forge.storage.contract.{subject}"), store)
    made = getattr(import_module(f"forge.storage.{dialect}.{subject}"), dialect.capitalize() + store)
    assert issubclass(made, contract)
    assert (STORAGE / "sql" / dialect / f"{subject}.sql").is_file()
