"""Type checkers accept right arguments to `.enqueue` and reject wrong ones, line by line."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from importlib import util
from pathlib import Path

import pytest

pytestmark = pytest.mark.impl_free

# A line that must be rejected ends in `# bad`; every other line must be accepted.
SOURCE = """\
from collections.abc import Coroutine
from typing import Any, assert_type
from forge import Context, Forge, Job, JobHandle, Task

app = Forge()

@app.task
def add(a: int, b: int = 2) -> int:
    return a + b

@app.task(queue="mail", max_attempts=3, timeout=60, backoff="fixed", dedupe="{to}", keep_result=True)
async def send(to: str, *, subject: str) -> bool:
    return True

@app.task
def told(ctx: Context, a: int, *, b: int = 2) -> int:
    assert_type(ctx.enqueue(add, 1, b=2), JobHandle[int])
    ctx.enqueue(send.using(delay=5), "ann", subject="hi")
    ctx.enqueue("kind", {"x": 1}, delay=5)
    ctx.enqueue_many(add, [(1, 2), add.call(1)])
    ctx.enqueue(add, "1")  # bad
    ctx.enqueue("kind", 1, dealy=5)  # bad
    ctx.enqueue_now(send, "ann")  # bad
    return a

@app.task(queue="mail")
async def atold(ctx: Context, a: int) -> str:
    assert_type(await ctx.aenqueue_now(add, 1), JobHandle[int])
    return ""

@app.task
def anything(a: Any, b: int = 2) -> int:
    return b

anything.enqueue({"x": 1}, b=3)
anything.enqueue(a=1)
assert_type(told.enqueue(1, b=3).result(), int)
assert_type(atold.enqueue(1).result(), str)
assert_type(told(1), int)
told.enqueue()  # bad
told.enqueue("1")  # bad
told.enqueue(1, c=3)  # bad
atold.enqueue(1, 2)  # bad

assert_type(add(1, 2), int)
assert_type(add.enqueue(1), JobHandle[int])
assert_type(add.enqueue(a=1, b=2).result(timeout=5), int)
assert_type(send.using(delay=5).enqueue("ann", subject="hi").result(), bool)
add.enqueue_many([add.call(1), add.call(1, b=2), (1, 2)])
handler: Task[[int], Any]

add.enqueue("1")  # bad
add.enqueue()  # bad
add.enqueue(1, 2, 3)  # bad
add.enqueue(1, c=2)  # bad
add("1")  # bad
send.enqueue("ann")  # bad
send.enqueue("ann", "hi")  # bad
send.enqueue("ann", subject=1)  # bad
send.using(delay="soon")  # bad
send.using(dealy=5)  # bad
send.using(delay=5).enqueue(1, subject="hi")  # bad
add.enqueue_many([send.call("ann", subject="hi")])  # bad
add.call("1")  # bad
app.task(queues="mail")  # bad
app.enqueue("mail", {}, prio=1)  # bad
text: str = add.enqueue(1).result()  # bad

async def main() -> None:
    answer: Coroutine[Any, Any, bool] = send("ann", subject="hi")
    assert_type(await answer, bool)
    handle = await send.aenqueue("ann", subject="hi")
    assert_type(await handle.aresult(), bool)
    assert_type(await handle.ajob(), Job)
    await handle.acancel()
    await app.aget(str(handle.id))
    await send.aenqueue(1, subject="hi")  # bad
    await app.aget(1.5)  # bad
    await handle.acancel(1)  # bad

@app.handler("mail")
def deliver(ctx: Any, payload: dict[str, Any]) -> None: ...

deliver(None, {})
deliver(None, 1)  # bad
"""

ROOT = Path(__file__).parents[2]
BAD = {number for number, line in enumerate(SOURCE.splitlines(), 1) if line.endswith("# bad")}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "calls.py"
    path.write_text(SOURCE)
    return path


def _run(*argv: str | Path) -> str:
    """What a checker prints. Its exit code only says that there is something to print."""
    return subprocess.run([*map(str, argv)], cwd=ROOT, capture_output=True, text=True, check=False).stdout


def test_mypy_rejects_exactly_the_wrong_calls(file: Path) -> None:
    said = _run(
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--no-error-summary",
        "--cache-dir",
        ROOT / ".mypy_cache" / "calls",
        file,
    )
    lines = {int(found[1]) for found in re.finditer(r"calls\.py:(\d+): error", said)}
    assert lines == BAD, said


def test_pyright_rejects_exactly_the_wrong_calls_where_it_can_run(file: Path) -> None:
    """It needs Node; run straight from the installed package, because its own starter may go and download one."""
    spec, node = util.find_spec("pyright"), shutil.which("node")
    if spec is None or spec.origin is None or node is None:
        return
    program = Path(spec.origin).with_name("dist") / "index.js"
    if not program.exists():
        return
    (file.parent / "pyrightconfig.json").write_text(
        json.dumps({"extraPaths": [str(ROOT)], "typeCheckingMode": "standard"})
    )
    said = _run(node, program, "--outputjson", "--pythonpath", sys.executable, "-p", file.parent)
    found = json.loads(said)["generalDiagnostics"]
    assert {note["range"]["start"]["line"] + 1 for note in found if note["severity"] == "error"} == BAD, said
