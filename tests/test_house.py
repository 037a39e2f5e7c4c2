"""The house is as its map says: one word for one thing, wiring by constructor, and no path in the docs that is not
there.

Each rule has a list of exceptions beside it, with the reason for each. An entry that is not needed any more fails too,
so that the lists only shrink.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.impl_free

ROOT = Path(__file__).parent.parent
FORGE = ROOT / "forge"


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def modules(under: Path = FORGE) -> list[Path]:
    return sorted(under.rglob("*.py"))


def compare(found: Iterable[str], allowed: Iterable[str]) -> None:
    """Fail with what is found and not allowed, and with what is allowed and not found."""
    found, allowed = set(found), set(allowed)
    assert not found - allowed, "against the rule: " + "; ".join(sorted(found - allowed))
    assert not allowed - found, "not needed in the list any more: " + "; ".join(sorted(allowed - found))


# -- wiring by constructor ---------------------------------------------------------------------------------------------

# An object's attributes are set by its own methods, or by code in the file of its class: nobody else assigns into it.
# But for these, by file name and target.
ASSIGNED_ELSEWHERE = {
    # Objects of other libraries, which are meant to be changed so.
    "connections.py: cursor.row_factory": "the switch of psycopg's and sqlite3's cursors",
    "connections.py: cursor.row_trace": "the switch of apsw's cursors",
    "guest.py: self._cursor.row_factory": "the switch of sqlite3's cursors",
    "guest.py: self._cursor.row_trace": "the switch of apsw's cursors",
    "database.py: conn.prepare_threshold": "the switch of psycopg's connections",
    "logs.py: record.message": "logging's formatters set it",
    "logs.py: record.stream": "fields of a log record are attributes of it",
    "logs.py: record.who": "fields of a log record are attributes of it",
    "logs.py: logger.disabled": "logging's own switch, which a module's dictConfig has turned",
    "logs.py: _handler.dev": "how WatchedFileHandler is told that its file is another one",
    "handle.py: twin.__doc__": "the docstring of a function that is made here",
    "outcomes.py: outcome.__cause__": "the cause of an exception that is made here",
    "output.py: sys.stdout": "what handlers print goes to the log",
    "output.py: sys.stderr": "what handlers print goes to the log",
    "output.py: sys.__stdout__": "what handlers print goes to the log",
    "output.py: sys.__stderr__": "what handlers print goes to the log",
    "output.py: self._logging.now": "a value of its own for each thread, in a threading.local",
    "database.py: _quiet.here.on": "a value of its own for each thread, in a threading.local",
    "threads.py: threading.Thread.start": "threads that a handler starts are followed to their job",
    "__init__.py: args.args": "argparse's result",
    # Outcomes are exceptions: what their constructors take is the user's, what else they carry is set beside it.
    "job_messages.py: outcome.error_type": "no argument of the user's Failed(…)",
    "outcomes.py: outcome.error_type": "no argument of the user's Failed(…)",
    "job_messages.py: done.spare_result": "no argument of the user's Done(…)",
    "steps.py: outcome.spare_result": "no argument of the user's Done(…)",
    # In inner loops, or shared by two files that are one subject.
    "burst.py: seat.ctx": "the inner loop of a worker, in which a call for each job is measured",
    "walking.py: turns.closed": "a claim's notes to the next one",
    "walking.py: turns.seen": "a claim's notes to the next one",
    "claims.py: who.doubtful": "claims in doubt, beside the tokens that are minted there",
    "database.py: conn.forgotten": "psycopg's connection with fields of the pool's",
    "pool.py: conn.used_at": "psycopg's connection with fields of the pool's",
    "running.py: storage.on_enqueue": "a test database runs jobs as they are enqueued, for the length of a with block",
    "running.py: self.total.ran": "a sum",
    "running.py: self.total.stale": "a sum",
    "running.py: self.total.outcomes": "a sum",
}


def own_attributes(tree: ast.Module) -> set[str]:
    """Names that the classes of a file declare, or set on themselves."""
    names: set[str] = set()
    for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(cls):
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
                names.add(node.attr)
        for node in cls.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names.add(node.target.id)
            elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__":
                names |= {str(each.value) for each in ast.walk(node) if isinstance(each, ast.Constant)}
            elif isinstance(node, ast.Assign):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def assigned_elsewhere(tree: ast.Module) -> Iterator[str]:
    """`x.attr` where that is assigned, and x is neither `self` nor an object of a class of this file."""
    own = own_attributes(tree)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value, attr, ast.Store() | ast.Del()) if not is_self(value) and attr not in own:
                yield ast.unparse(node)


def test_nothing_is_assigned_into_another_object() -> None:
    found = {f"{path.name}: {target}" for path in modules() for target in assigned_elsewhere(tree_of(path))}
    compare(found, ASSIGNED_ELSEWHERE)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("class A:\n    def f(self):\n        self.x = self.y.z = 1", ["self.y.z"]),
        ("class A:\n    def __init__(self):\n        self.x = 1\ndef f(a):\n    a.x += 1", []),
        ("class A:\n    x: int\ndef f(a):\n    a.x, a.y = 1, 2", ["a.y"]),
        ("def f(a):\n    for a.x in ():\n        del a.y", ["a.x", "a.y"]),
        ("with f() as a.x: ...", ["a.x"]),
    ],
)
def test_an_assignment_into_another_object_is_found(source: str, found: list[str]) -> None:
    assert list(assigned_elsewhere(ast.parse(source))) == found


def dispatches_by_name(tree: ast.Module) -> Iterator[str]:
    """`getattr(x, f"_on_{kind}")` or the like: a method that nobody finds by looking for its name."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Name("getattr" | "setattr"), [_, ast.JoinedStr() | ast.BinOp(), *_]):
                yield ast.unparse(node)


def test_no_method_is_called_by_a_name_that_is_put_together() -> None:
    assert list(dispatches_by_name(ast.parse('getattr(self, f"_news_{kind}")(news)')))
    assert not [f"{path}: {call}" for path in modules() for call in dispatches_by_name(tree_of(path))]


# -- one word, one thing -----------------------------------------------------------------------------------------------

# The two databases have twins: classes and files of the same name. A name is there twice if one of them sees it twice.
DIALECTS = [FORGE / "storage" / "postgres", FORGE / "storage" / "sqlite"]

CLASSES_TWICE = {
    "Master": "the pod; the one that the demo starts",
}

FILES_TWICE = {
    # One subject that several layers have a part in, each by the same word.
    "budgets.py": "the command, what holds of them in a cluster, their tables",
    "enqueue.py": "the command, how jobs are stored",
    "metrics.py": "the command, what is counted, its tables",
    "schedules.py": "the app's, the command, what a cluster does, the zygote's, their tables",
    "shares.py": "how they are worked out, their tables",
    "endings.py": "the fast path's arrays of them, how they are written",
    # Two subjects.
    "database.py": "SQLite's file; the one that tests have",
    "modules.py": "the command; importing them",
    "values.py": "of settings; of the storage's contract",
    "reading.py": "of settings; of a worker's channel",
}


def place_of(path: Path) -> Path:
    """Its folder. All of storage is one: the contract, both databases and what they share have one name for a
    subject."""
    storage = FORGE / "storage"
    return storage if storage in path.parents else path.parent


def named_twice(places: dict[str, set[Path]]) -> list[str]:
    return [name for name, where in places.items() if len(where) > 1]


def test_no_class_name_is_there_twice() -> None:
    found: set[str] = set()
    for other in DIALECTS:
        places: dict[str, set[Path]] = defaultdict(set)
        for path in modules():
            if other not in path.parents:
                for node in ast.walk(tree_of(path)):
                    if isinstance(node, ast.ClassDef):
                        places[node.name].add(path)
        found |= set(named_twice(places))
    compare(found, CLASSES_TWICE)


def test_no_file_name_is_there_twice() -> None:
    places: dict[str, set[Path]] = defaultdict(set)
    for path in modules():
        if path.name not in ("__init__.py", "__main__.py"):
            places[path.name].add(place_of(path))
    compare(named_twice(places), FILES_TWICE)


# A file of the master has a class of its name (`worker_count.py`: WorkerCount; `pools.py`: Pool), or only functions.
NAMED_OTHERWISE = {
    "loop.py": "the package is the master, and the class with it: it is the loop that is in this file",
    "news.py": "a class for each kind of them",
}


def words_of(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def test_files_of_the_master_are_named_like_their_main_class() -> None:
    found = []
    for path in modules(FORGE / "master"):
        classes = [node for node in tree_of(path).body if isinstance(node, ast.ClassDef)]
        public = {words_of(node.name) for node in classes if not any("Error" in ast.unparse(b) for b in node.bases)}
        if public and not public & {path.stem, path.stem.removesuffix("s")}:
            found.append(path.name)
    compare(found, NAMED_OTHERWISE)


# Words that the house had once, and what stands for them now.
GONE = {
    "courier": "database thread",
    "crew": "workers",
    "desk": "requests",
    "duties": "services",
    "ears": "listener thread",
    "lane": "local queue",
    "nursery": "zygote",
    "supervisor": "master, loop",
    "telling": "log",
}


def test_words_that_are_gone_do_not_come_back() -> None:
    pattern = re.compile(rf"(?<![a-z])({'|'.join(GONE)})(?:s|ies)?(?![a-z])", re.IGNORECASE)
    files = [path for top in ("forge", "tests", "bench", "docs") for path in (ROOT / top).rglob("*")]
    files += [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    kinds = {".py", ".pyx", ".pxi", ".md", ".sql"}
    found = {}
    for path in files:
        if path.suffix in kinds and path != Path(__file__):
            words = {word[1].lower() for word in pattern.finditer(f"{path.name}\n{path.read_text('utf-8')}")}
            if words:
                found[path.relative_to(ROOT).as_posix()] = ", ".join(sorted(words))
    assert not found


# -- what the docs say of it -------------------------------------------------------------------------------------------

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
# Paths of a user's project, in examples.
USERS = {"docs/cli.md: tests/test_tasks.py"}

PATH = re.compile(r"`((?:forge|tests|bench|docs)/[^`\s]*)[^`]*`")
FUNCTION = re.compile(r"`([\w.]+)` in\s+`([^`\s]+)`")


def test_every_path_that_the_docs_name_exists() -> None:
    missing = [
        f"{page.relative_to(ROOT).as_posix()}: {path}"
        for page in PAGES
        for path in PATH.findall(page.read_text("utf-8"))
        if not any(ROOT.glob(path.rstrip("/")))
    ]
    compare(missing, USERS)


def is_there(dotted: str) -> bool:
    """Whether `forge.a.b` is a module, or a name in the module `forge.a`."""
    path = ROOT / dotted.replace(".", "/")
    if path.with_suffix(".py").exists() or (path / "__init__.py").exists():
        return True
    home = path.parent / "__init__.py" if path.parent.is_dir() else path.parent.with_suffix(".py")
    return home.exists() and re.search(rf"\b{path.name}\b", home.read_text("utf-8")) is not None


def test_every_module_that_is_named_in_prose_exists() -> None:
    for page in [*PAGES, *modules(), *sorted(FORGE.rglob("*.px?"))]:
        named = set(re.findall(r"`(forge(?:\.[a-z_]+){2,})`", page.read_text("utf-8")))
        assert not [name for name in named if not is_there(name)], page
    assert not is_there("forge.master.nobody") and not is_there("forge.nowhere.nobody")


def has_function(path: Path, name: str) -> bool:
    """Whether a module has that function or class, or `Class.method`; of a file of SQL, that statement."""
    if path.suffix == ".sql":
        return re.search(rf"^-- name: {name}$", path.read_text("utf-8"), re.MULTILINE) is not None
    body: list[ast.stmt] = tree_of(path).body
    for part in name.split("."):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
        node = next((node for node in body if isinstance(node, kinds) and node.name == part), None)
        if node is None:
            return False
        body = node.body
    return True


def untrue(text: str, root: Path) -> list[str]:
    """Which of "`name` in `path`" is not so. With a star for the database, each of the two must have it."""
    found = []
    for name, pattern in FUNCTION.findall(text):
        for dialect in ("postgres", "sqlite") if "sql/*/" in pattern else ("",):
            paths = list(root.glob(pattern.replace("sql/*/", f"sql/{dialect}/")))
            if not any(has_function(path, name) for path in paths):
                found.append(f"{name} in {pattern}")
    return found


def test_the_readme_names_functions_where_they_are() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    flow = text[text.index("## How a job flows") : text.index("## What holds")]
    assert not untrue(flow, ROOT)
    steps = {row.split("|")[1].strip(): row for row in flow.splitlines() if row.startswith("|")}
    for step in ("claim", "dispatch", "fork", "reply", "finalize"):
        named = [path for _, path in FUNCTION.findall(steps[step])]
        assert any(path.endswith(".py") for path in named), step


def test_the_maps_of_the_master_name_its_files_and_functions() -> None:
    for page in (FORGE / "master").rglob("__init__.py"):
        text = ast.get_docstring(tree_of(page)) or ""
        assert not untrue(text, page.parent), page
        files = {path.name for path in page.parent.glob("*.py") if path != page}
        folders = {f"{path.parent.name}/" for path in page.parent.glob("*/__init__.py")}
        named = {word.rstrip("`") for word in re.findall(r"`([\w/]+\.py|\w+/)`", text)}
        assert files | folders <= named, page


def test_a_function_that_is_not_there_is_found() -> None:
    assert untrue("`Replies.hear` in `replies.py`, `Replies.listen` in `replies.py`", FORGE / "master" / "workers") == [
        "Replies.listen in replies.py"
    ]
    assert (
        untrue("`claim` in `sql/*/*.sql` and `no_claim` in `sql/*/*.sql`", FORGE / "storage")
        == ["no_claim in sql/*/*.sql"] * 2
    )


def test_every_file_is_in_the_layout() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    layout = text[text.index("## Where things are") : text.index("Imports point one way")]
    named = {ROOT / path.rstrip("/") for path in PATH.findall(layout)} - {FORGE}
    files = [path for path in FORGE.rglob("*") if path.suffix in {".py", ".pyx", ".pxi"}]
    assert not [path for path in files if path not in named and named.isdisjoint(path.parents)]
    parts = [path for path in FORGE.glob("master/*") if path.name[0] != "_"]
    assert not [path for path in parts if path not in named], "the master is told file by file"
