"""Lines under real masters: limits with kills, turns, budgets."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from forge.job import Status
from tests.storage.helpers import sql

from .conftest import Pod, Project, alive, eventually, making

pytestmark = pytest.mark.impl_free

# Each run holds a lock on a file of its own, in the directory of its key, and counts those that are held just then.
# A process that was killed holds none.
TASKS = '''
import fcntl, os, time
from forge import Forge

app = Forge()
LEDGER = os.environ["LEDGER"]
HELD = LEDGER + ".held"


def note(*words):
    fd = os.open(LEDGER, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (" ".join(map(str, words)) + "\\n").encode())
    os.close(fd)


def held(path):
    """Whether a process that lives holds it."""
    try:
        fd = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: so others who look are not taken for its holder
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(fd)


@app.task(concurrency="{key}:2", max_attempts=50)
def guarded(key: str, n: int, seconds: float) -> None:
    folder = os.path.join(HELD, key)
    os.makedirs(folder, exist_ok=True)
    mine = os.path.join(folder, f"{n}.{os.getpid()}.{time.monotonic_ns()}")
    fd = os.open(mine, os.O_RDWR | os.O_CREAT)
    fcntl.flock(fd, fcntl.LOCK_EX)
    note("START", key, n, sum(held(os.path.join(folder, name)) for name in os.listdir(folder)))
    time.sleep(seconds)
    note("END", key, n)
    os.unlink(mine)
    os.close(fd)


@app.task(partition_by="{tenant}")
def fair(tenant: str, n: int) -> None:
    note("RAN", tenant, n)


@app.task(rate_limit="few")
def paid(n: int) -> None:
    note("PAID", n, time.monotonic())


@app.task
def plain(n: int) -> None:
    note("PLAIN", n)
'''


SETTINGS = """
poll_interval = 0.2
heartbeat = 0.5
stale_after = 3.0
max_crashes = 1000
[queues.default]
max_workers = 9
[limits.few]
capacity = 3
refill_per_sec = 2
"""


def prepared(project: Project) -> Project:
    """With those tasks."""
    (project.folder / "tasks.py").write_text(TASKS)
    project.settings(SETTINGS)
    return project


@pytest.fixture
def lined(project: Project) -> Project:
    """On each database in turn."""
    return prepared(project)


@pytest.fixture
def lined_on_postgres(tmp_path: Path, pg_url: str) -> Iterator[Project]:
    """Where several pods can be."""
    for made in making(tmp_path, pg_url):
        yield prepared(made)


# What the tasks declare: the app of the test does not know them.
LINES: dict[str, dict[str, str]] = {
    "guarded": {"concurrency": "{args[0]}:2"},
    "fair": {"partition_by": "{args[0]}"},
    "paid": {"rate_limit": "few"},
    "plain": {},
}


def enqueue(project: Project, task: str, *calls: tuple[object, ...], **options: str) -> None:
    """Many at once."""
    app, said = project.app, {**LINES[task], **options}
    app.enqueue_many(
        [app.job(f"tasks.{task}", {"args": list(call), "kwargs": {}}, **said) for call in calls]  # type: ignore[arg-type]
    )


def statuses(project: Project) -> Counter[Status]:
    return Counter(job.status for job in project.app.jobs())


def all_done(project: Project, count: int) -> bool:
    return statuses(project) == {Status.DONE: count}


def workers_of(pod: Pod) -> list[int]:
    """Its workers, without the zygote they were forked from."""
    below = Path(f"/proc/{pod.process.pid}/task/{pod.process.pid}/children").read_text().split()
    zygotes = {int(pid) for pid in below}
    return [pid for pid in pod.children() if pid not in zygotes and alive(pid)]


KEYS = 4
EACH = 25
GUARDED = [(f"key{k}", n, 0.03) for n in range(EACH) for k in range(KEYS)]


def kill_workers(pods: list[Pod], chance: random.Random, times: int) -> int:
    """One after another, at random; how many."""
    killed = 0
    for _ in range(times):
        victims = [pid for pod in pods if pod.process.poll() is None for pid in workers_of(pod)]
        if victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(chance.choice(victims), signal.SIGKILL)
                killed += 1
        time.sleep(0.1)  # so that the kills are spread over the run
    return killed


def check_guarded(project: Project, kills: int, jobs: Sequence[tuple[str, int, float]] = GUARDED) -> None:
    """Never three at once, all done, no more often than kills explain, and no place is left taken."""
    at_once = Counter(int(words[3]) for words in project.events("START"))
    assert set(at_once) == {1, 2}, at_once
    ends = Counter((key, int(n)) for _, key, n in project.events("END"))
    assert set(ends) == {(key, n) for key, n, _ in jobs}
    assert ends.total() - len(ends) <= kills
    assert sql(project.url, "select count(*) from {job} where place is not null") == [(0,)]


def test_a_limit_of_two_holds_while_workers_are_killed(lined: Project) -> None:
    pod = lined.start()
    enqueue(lined, "guarded", *GUARDED)
    kills = kill_workers([pod], random.Random(5), 12)
    eventually(lambda: all_done(lined, len(GUARDED)), within=60)
    check_guarded(lined, kills)


def test_a_limit_of_two_holds_over_three_pods_one_of_which_is_killed(lined_on_postgres: Project) -> None:
    project = lined_on_postgres
    enqueue(project, "guarded", *GUARDED)
    pods = [project.launch() for _ in range(3)]
    for pod in pods:
        pod.ready()
    eventually(lambda: len(project.events("START")) >= 10)
    before = {pid for pod in pods for pid in workers_of(pod)}
    in_hand = len(workers_of(pods[1]))
    pods[1].process.kill()
    kills = kill_workers([pods[0], pods[2]], random.Random(7), 10) + in_hand
    eventually(lambda: all_done(project, len(GUARDED)), within=60)
    assert before
    check_guarded(project, kills)
    more = [(key, n + 1000, seconds) for key, n, seconds in GUARDED[: KEYS * 4]]
    enqueue(project, "guarded", *more)
    eventually(lambda: all_done(project, len(GUARDED) + len(more)), within=60)
    late = [int(at_once) for _, _, n, at_once in project.events("START") if int(n) >= 1000]
    assert max(late) == 2, "whoever died holds nothing back"


def test_ten_jobs_of_one_tenant_run_soon_beside_thousands_of_another(lined: Project) -> None:
    enqueue(lined, "fair", *(("big", n) for n in range(3_000)))
    enqueue(lined, "fair", *(("small", n) for n in range(10)))
    enqueue(lined, "plain", *((n,) for n in range(10)))
    lined.start()
    eventually(lambda: all_done(lined, 3_020), within=60)
    order = [words[:2] for line in lined.ledger.read_text().splitlines() if (words := line.split())]
    assert max(at for at, words in enumerate(order) if words == ["RAN", "small"]) < 1_500
    assert max(at for at, words in enumerate(order) if words[0] == "PLAIN") < 1_500


def test_jobs_with_a_budget_are_claimed_only_as_it_has_tokens(lined: Project) -> None:
    lined.start()
    since = time.monotonic()
    enqueue(lined, "paid", *((n,) for n in range(7)))
    enqueue(lined, "plain", (1,))
    eventually(lambda: lined.events("PLAIN"))
    eventually(lambda: all_done(lined, 8))
    began = sorted(float(at) for _, _, at in lined.events("PAID"))
    assert all(at - since >= (k - 3) / 2 for k, at in enumerate(began, 1)), [at - since for at in began]


def test_jobs_of_a_budget_that_nobody_has_wait_and_keep_no_others_waiting(lined: Project) -> None:
    lined.start()
    enqueue(lined, "paid", (1,), rate_limit="nowhere")
    enqueue(lined, "fair", ("a", 1), ("b", 1))
    eventually(lambda: len(lined.events("RAN")) == 2)
    assert lined.events("PAID") == []
    assert statuses(lined)[Status.PENDING] == 1


def test_a_pod_learns_of_the_first_job_in_a_line_while_it_runs(lined: Project) -> None:
    lined.start()
    enqueue(lined, "plain", (1,))
    eventually(lambda: lined.events("PLAIN"))
    enqueue(lined, "fair", ("a", 1))
    eventually(lambda: lined.events("RAN"))
