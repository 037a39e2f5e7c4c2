"""What handlers print, and what their programs do: in the log at once, with the job it belongs to, whoever is killed.

PYTHONUNBUFFERED would hide most of what can go wrong here, so no master in this file has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import UUID

import orjson
import pytest

from tests.master.conftest import Pod, Project, eventually

TASKS = """
import asyncio, concurrent.futures, contextlib, ctypes, io, logging, os, signal, subprocess, sys, threading, time
from forge import Forge
from sys import stdout as kept_at_import

app = Forge()
print("imported")
FOLDER = os.path.dirname(os.environ["LEDGER"])


def wait_for(name):
    while not os.path.exists(os.path.join(FOLDER, name)):
        time.sleep(0.005)


@app.task
def prints(text: str, then: str = "") -> None:
    print(text)
    if then == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if then:
        wait_for(then)


@app.task
async def prints_later(text: str, then: str = "") -> None:
    print(text, file=sys.stderr)
    while then and not os.path.exists(os.path.join(FOLDER, then)):
        await asyncio.sleep(0.005)


def say(text):
    print("printed in", text)
    logging.getLogger("own").warning("logged in %s", text)


def in_thread(fn, *args):
    thread = threading.Thread(target=fn, args=args)
    thread.start()
    thread.join()


def left_behind():
    wait_for("another job")
    say("a thread of a job that has ended")


@app.task
def threads() -> None:
    in_thread(say, "a thread")
    in_thread(in_thread, say, "a thread of a thread")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        pool.submit(say, "a pool")
    threading.Thread(target=left_behind).start()


@app.task
async def loops() -> None:
    await asyncio.to_thread(say, "to_thread")
    await asyncio.get_running_loop().run_in_executor(None, say, "an executor")


@app.task
def in_pieces(n: int) -> None:
    for i in range(20):
        print("piece", end=" ")
        time.sleep(0.001)
        print(n, end=" ")
        time.sleep(0.001)
        print("end")


@app.task
def without_newline(text: str) -> None:
    sys.stdout.write(text)


@app.task
def flushes(text: str, then: str) -> None:
    print(text, end="", flush=True)
    wait_for(then)


@app.task
def old_stream(text: str) -> None:
    kept_at_import.write(text + "\\n")
    sys.stdout.buffer.write(b"bytes of " + text.encode() + b"\\n")
    print("through __stdout__ of", text, file=sys.__stdout__)
    assert (sys.stdout.fileno(), sys.stderr.fileno(), sys.stdout.isatty()) == (1, 2, False)
    sys.stdout.reconfigure(line_buffering=True)
    with contextlib.redirect_stdout(io.StringIO()) as found:
        print("hidden")
    assert found.getvalue() == "hidden\\n"
    print("\\ud800 \\x1b[31m 12:00:00 master  a lie of", text)


@app.task
def closes() -> None:
    print("closed")
    sys.stdout.close()


@app.task
def below_python(text: str, then: str = "") -> None:
    os.write(1, f"raw {text}\\n".encode())
    subprocess.run(["sh", "-c", f"echo program {text}; echo error {text} >&2"], check=True)
    if then == "abort":
        ctypes.CDLL(None).perror(text.encode())
        import faulthandler
        faulthandler.enable()
        os.abort()


@app.task
def two_lines(n: int) -> None:
    os.write(2, f"job {n}\\n".encode())


@app.task
def forks(text: str) -> None:
    print("unfinished", end="")
    pid = os.fork()
    if pid == 0:
        print("child of", text)
        os._exit(0)
    os.waitpid(pid, 0)
    print(" and finished")


@app.task
def floods(how: str) -> None:
    if how == "lines":
        for n in range(200_000):
            print("flood", n)
    elif how == "no newline":
        for n in range(20):
            sys.stdout.write("x" * 1_000_000)
    elif how == "raw":
        block = b"flood\\n" * 10_000
        for n in range(50):
            left = block
            while left:
                left = left[os.write(1, left):]
    if how != "raw":
        print("the flood is over")


@app.task
def fine(n: int) -> int:
    return n
"""


@pytest.fixture(autouse=True)
def buffered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@pytest.fixture
def printing(project: Project) -> Callable[..., Pod]:
    """A master whose one queue has these settings, with its log in JSON."""

    def start(settings: str = "max_workers = 1\n", logging: str = 'format = "json"\n') -> Pod:
        (project.folder / "tasks.py").write_text(TASKS)
        project.settings(f"[logging]\n{logging}[queues.default]\n{settings}")
        return project.start()

    return start


def logged(pod: Pod) -> list[dict[str, Any]]:
    """All lines."""
    return [orjson.loads(line) for line in list(pod.lines) if line.startswith("{")]


def printed(pod: Pod) -> list[dict[str, Any]]:
    """The lines that somebody printed."""
    return [line for line in logged(pod) if "stream" in line]


def line(pod: Pod, text: str, among: Callable[[Pod], list[dict[str, Any]]] = printed) -> dict[str, Any]:
    """The one with this text, once it is there."""
    eventually(lambda: any(each["message"] == text for each in among(pod)))
    (found,) = (each for each in among(pod) if each["message"] == text)
    return found


def id_of(handle: Any) -> UUID:
    found: UUID = handle.id
    return found


def go(project: Project, name: str) -> None:
    (project.folder / name).touch()


@pytest.mark.parametrize("kind", ["process", "threads", "async"])
def test_what_a_handler_prints_is_in_the_log_at_once_with_its_job(
    project: Project, printing: Callable[..., Pod], kind: str
) -> None:
    pod = printing(f'max_workers = 1\nworker = "{kind}"\n' + ("concurrency = 4\n" if kind != "process" else ""))
    for task, stream, level in (("prints", "stdout", "info"), ("prints_later", "stderr", "warning")):
        handle = project.enqueue(task, f"from {task}", task)
        found = line(pod, f"from {task}")  # while it runs: it waits for us
        go(project, task)
        del found["time"]
        assert found == {
            "level": level,
            "logger": f"forge.{stream}",
            "who": "default/0",
            "message": f"from {task}",
            "job_id": str(id_of(handle)),
            "kind": f"tasks.{task}",
            "queue": "default",
            "attempt": 1,
            "stream": stream,
        }
    zygote = line(pod, "imported")
    assert (zygote["who"], "job_id" in zygote) == ("zygote", False)


@pytest.mark.parametrize("kind", ["process", "threads", "async"])
def test_what_threads_of_a_job_say_is_the_jobs_while_it_runs(
    project: Project, printing: Callable[..., Pod], kind: str
) -> None:
    pod = printing(f'max_workers = 1\nworker = "{kind}"\n')
    for task, wheres in (("threads", ("a thread", "a thread of a thread", "a pool")), ("loops", ("to_thread",))):
        handle: Any = project.enqueue(task)
        assert handle.result(timeout=60) is None
        for where in wheres:
            assert line(pod, f"printed in {where}")["job_id"] == str(id_of(handle))
            assert line(pod, f"logged in {where}", logged)["job_id"] == str(id_of(handle))
    assert line(pod, "printed in an executor")["job_id"] == str(id_of(handle))
    handle = project.enqueue("prints", "another job", "the end")
    line(pod, "another job")
    go(project, "another job")
    for found in (
        line(pod, "printed in a thread of a job that has ended"),
        line(pod, "logged in a thread of a job that has ended", logged),
    ):
        assert "job_id" not in found
    go(project, "the end")


def test_what_was_printed_right_before_a_kill_is_there(project: Project, printing: Callable[..., Pod]) -> None:
    pod = printing()
    handle = project.enqueue("prints", "last words", "kill", max_attempts=1)
    eventually(lambda: any(each["message"] == "last words" for each in printed(pod)))
    assert {each["job_id"] for each in printed(pod) if each["message"] == "last words"} == {str(id_of(handle))}


def test_text_is_marked_with_worker_and_job_and_cannot_lie(project: Project, printing: Callable[..., Pod]) -> None:
    pod = printing(logging="")
    handle = project.enqueue("old_stream", "me")
    eventually(lambda: pod.says("a lie of me"))
    id = id_of(handle)
    texts = [each for each in pod.lines if str(id) in each]
    assert [re.sub(r"^\d\d:\d\d:\d\d ", "", each) for each in texts] == [
        f"default/0  {text}  [tasks.old_stream {id}]"
        for text in (
            "me",
            "bytes of me",
            "through __stdout__ of me",
            r"\ud800 \x1b[31m 12:00:00 master  a lie of me",
        )
    ]


def test_lines_of_jobs_beside_each_other_stay_whole_and_apart(project: Project, printing: Callable[..., Pod]) -> None:
    pod = printing('max_workers = 2\nworker = "threads"\nconcurrency = 4\n')
    handles = {str(id_of(project.enqueue("in_pieces", n))): n for n in range(8)}
    eventually(lambda: len([each for each in printed(pod) if each.get("job_id") in handles]) == 160)
    for each in printed(pod):
        if "job_id" in each:
            assert each["message"] == f"piece {handles[each['job_id']]} end"


def test_a_line_without_an_end_comes_with_a_flush_or_the_end_of_its_job(
    project: Project, printing: Callable[..., Pod]
) -> None:
    pod = printing()
    first = project.enqueue("without_newline", "no newline here")
    assert line(pod, "no newline here")["job_id"] == str(id_of(first))
    second = project.enqueue("flushes", "so far", "flushed")
    assert line(pod, "so far")["job_id"] == str(id_of(second))
    go(project, "flushed")


def test_a_handler_that_closes_its_output_closes_nobody_elses(project: Project, printing: Callable[..., Pod]) -> None:
    pod = printing()
    project.enqueue("closes")
    line(pod, "closed")
    handle: Any = project.enqueue("prints", "still here")
    assert handle.result(timeout=60) is None
    line(pod, "still here")


def test_a_process_that_a_handler_forks_prints_its_own_lines_only(
    project: Project, printing: Callable[..., Pod]
) -> None:
    pod = printing()
    handle = project.enqueue("forks", "me")
    line(pod, "unfinished and finished")
    assert line(pod, "child of me")["job_id"] == str(id_of(handle))


def test_what_is_written_below_python_comes_with_the_worker_and_its_only_job(
    project: Project, printing: Callable[..., Pod]
) -> None:
    pod = printing()
    handle = project.enqueue("below_python", "me")
    for text, stream in (("raw me", "stdout"), ("program me", "stdout"), ("error me", "stderr")):
        found = line(pod, text)
        assert (found["who"], found["stream"], found["job_id"]) == ("default/0", stream, str(id_of(handle)))


def test_no_job_is_given_the_words_of_another(project: Project, printing: Callable[..., Pod]) -> None:
    pod = printing("max_workers = 2\n")
    handles = {str(id_of(project.enqueue("two_lines", n))): n for n in range(100)}
    eventually(lambda: sum(each["message"].startswith("job ") for each in printed(pod)) == 100)
    for each in printed(pod):
        if "job_id" in each:
            assert each["message"] == f"job {handles[each['job_id']]}"


def test_the_last_words_of_a_dying_interpreter_are_the_workers(project: Project, printing: Callable[..., Pod]) -> None:
    pod = printing()
    project.enqueue("below_python", "dying", "abort", max_attempts=1)
    eventually(lambda: any("Fatal Python error: Aborted" in each["message"] for each in printed(pod)))
    found = next(each for each in printed(pod) if "Fatal Python error: Aborted" in each["message"])
    assert (found["who"], found["stream"]) == ("default/0", "stderr")
    assert any("in below_python" in each["message"] for each in printed(pod))


def lines_said(pod: Pod) -> int:
    """Of a flood: those in the log, and those that are only counted there."""
    texts: list[str] = [each["message"] for each in printed(pod)]
    counts = [re.fullmatch(r"… ([\d,]+) more lines?, too many to log", text) for text in texts]
    assert any(counts)
    return sum(text.startswith("flood") for text in texts) + sum(int(n[1].replace(",", "")) for n in counts if n)


@pytest.mark.parametrize(("how", "lines"), [("lines", 200_001), ("raw", 500_000)])
def test_of_a_flood_of_lines_the_rest_is_counted_and_nobody_is_held_up(
    project: Project, printing: Callable[..., Pod], how: str, lines: int
) -> None:
    pod = printing("max_workers = 2\n")
    flood: Any = project.enqueue("floods", how)
    for n in range(20):
        handle: Any = project.enqueue("fine", n)
        assert handle.result(timeout=60) == n
    flood.result(timeout=120)
    eventually(lambda: any("too many to log" in each["message"] for each in printed(pod)) and lines_said(pod) == lines)
    assert pod.stop() == 0


def test_a_line_without_an_end_costs_one_line(project: Project, printing: Callable[..., Pod]) -> None:
    pod = printing()
    flood: Any = project.enqueue("floods", "no newline")
    flood.result(timeout=120)
    eventually(lambda: any("more bytes" in each["message"] for each in printed(pod)))
    (found,) = (each for each in printed(pod) if "more bytes" in each["message"])
    assert re.fullmatch(r"x{8000}… \(19,992,017 more bytes\)", found["message"])


def test_the_master_drains_while_a_handler_floods_its_pipe(project: Project, printing: Callable[..., Pod]) -> None:
    """A worker that waits for room in its pipe must find somebody who reads it."""
    pod = printing()
    project.enqueue("floods", "raw")
    eventually(lambda: any(each["message"] == "flood" for each in printed(pod)))
    assert pod.stop() == 0
    assert lines_said(pod) == 500_000


def test_a_log_that_cannot_be_written_does_not_hurt_a_job_that_prints(project: Project) -> None:
    (project.folder / "tasks.py").write_text(TASKS)
    project.settings('[logging]\nfile = "/dev/full"\n[queues.default]\nmax_workers = 1\n')
    project.launch()
    handle: Any = project.enqueue("prints", "to nobody")
    assert handle.result(timeout=60) is None
