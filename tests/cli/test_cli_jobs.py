"""Jobs from the shell: enqueue, look, operate."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest

from forge import Forge, JobHandle, Status
from forge.errors import ExitCode
from forge.inline import drain
from tests.cli.conftest import Shell

pytestmark = pytest.mark.impl_free


def work(folder: Path) -> Forge:
    """Run what is due in the project's database, as a worker would."""
    from tasks import app  # type: ignore[import-not-found,unused-ignore]

    assert isinstance(app, Forge)
    drain(app)
    return app


def test_an_enqueued_task_prints_its_id_and_makes_the_sqlite_database(forge: Shell, project: Path) -> None:
    id = UUID(forge.ok("enqueue", "tasks.add", 2, 3).strip())
    assert (project / "forge.db").exists()
    found = forge("show", id, "-o", "json").json
    assert (found["kind"], found["payload"]) == ("tasks.add", {"args": [2, 3], "kwargs": {}})
    assert (found["status"], found["queue"], found["enqueued_at"][-1]) == ("pending", "default", "Z")


@pytest.mark.parametrize(
    ("words", "args"),
    [
        (["5"], [5]),
        (["-5", "b=7"], [-5, 7]),
        (["a=2", "b=7"], [2, 7]),
    ],
)
def test_words_become_arguments_checked_against_the_signature(
    forge: Shell, project: Path, words: list[str], args: list[int]
) -> None:
    id = forge.ok("enqueue", "tasks.add", *words).strip()
    assert forge("show", id, "-o", "json").json["payload"]["args"] == args


def test_a_job_can_be_put_in_a_line_and_shown_with_it(forge: Shell, project: Path) -> None:
    options = ("--concurrency", "{a}:3", "--partition-by", "acme", "--rate-limit", "slack")
    id = forge.ok("enqueue", "tasks.add", 2, *options).strip()
    line = {"name": "slack|tasks.add:2|acme", "rate_limit": "slack", "concurrency_key": "tasks.add:2", "concurrency": 3}
    assert forge("show", id, "-o", "json").json["line"] == line
    assert "  line        slack|tasks.add:2|acme, 3 at once\n" in forge.ok("show", id, "-v")
    assert "{c}, which is no parameter" in forge.fails(2, "enqueue", "tasks.add", 2, "--partition-by", "{c}")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["two"], "tasks.add: parameter a must be int, not str"),
        ([], "tasks.add: missing a required argument: 'a'; it takes (a, b)"),
        (["1", "2", "3"], "tasks.add: too many positional arguments (3); it takes (a, b)"),
        (["a=1", "2"], "argument 2 stands behind a=…; put plain arguments first"),
        (["a=1", "a=2"], "argument a is given twice"),
        (["1", "--payload", "{}"], "give arguments or --payload, not both"),
        (["--payload", "{"], "--payload is not JSON: "),
        (["1", "--priority", "99999"], "priority must be -32768 to 32767, not 99999"),
        (["1", "--delay", "-1"], "delay must be 0 to "),
    ],
)
def test_what_cannot_be_a_job_is_refused_and_nothing_is_stored(
    forge: Shell, project: Path, words: list[str], said: str
) -> None:
    assert forge.fails(ExitCode.USAGE, "enqueue", "tasks.add", *words).startswith(said)
    forge.ok("db", "migrate")
    assert forge.ok("jobs") == "no jobs\n"


def test_an_unknown_task_names_the_nearest(forge: Shell, project: Path) -> None:
    said = forge.fails(ExitCode.USAGE, "enqueue", "tasks.ad", 1, 2)
    assert said == "no task tasks.ad; did you mean tasks.add?   (forge tasks lists all)"
    assert forge.fails(ExitCode.USAGE, "enqueue", "zzz") == "no task zzz   (forge tasks lists all)"
    assert not (project / "forge.db").exists()


def test_options_may_stand_anywhere(forge: Shell, project: Path) -> None:
    words = [
        "--queue",
        "fast",
        "tasks.add",
        "1",
        "--priority",
        "-3",
        "b=2",
        "--tag",
        "x",
        "--tag",
        "y",
        "--delay",
        "60",
    ]
    words += ["--dedupe-key", "k", "--unique-for", "9", "--max-attempts", "7", "--job-timeout", "11"]
    id = forge.ok("enqueue", *words).strip()
    found = forge("show", id, "-o", "json").json
    wanted = {"queue": "fast", "priority": -3, "tags": ["x", "y"], "dedupe_key": "k", "unique_for": 9}
    assert {key: found[key] for key in wanted} == wanted
    assert (found["max_attempts"], found["timeout"]) == (7, 11)
    assert found["run_at"] > found["enqueued_at"]


def test_a_plain_handler_takes_a_payload(forge: Shell, project: Path) -> None:
    id = forge.ok("enqueue", "raw", "--payload", '{"n": [1, null]}').strip()
    assert forge("show", id, "-o", "json").json["payload"] == {"n": [1, None]}
    id = forge.ok("enqueue", "raw", "to=me", "n=1").strip()
    assert forge("show", id, "-o", "json").json["payload"] == {"to": "me", "n": 1}
    assert forge.fails(ExitCode.USAGE, "enqueue", "raw", "x").startswith("raw takes a payload")


def test_without_modules_any_kind_can_be_enqueued(forge: Shell, url: str) -> None:
    id = forge.ok("enqueue", "other.kind", 1, "x=true", "--database", url).strip()
    ran = forge("show", id, "--database", url, "-o", "json")
    assert ran.json["payload"] == {"args": [1], "kwargs": {"x": True}}


def test_a_taken_dedupe_key_answers_the_job_that_has_it(forge: Shell, project: Path) -> None:
    first = forge.ok("enqueue", "tasks.add", 1, "--dedupe-key", "k").strip()
    ran = forge("enqueue", "tasks.add", 2, "--dedupe-key", "k")
    assert (ran.code, ran.out.strip()) == (0, first)
    assert ran.err == "nothing was stored: that job has the dedupe key\n"
    assert forge("enqueue", "tasks.add", 3, "--dedupe-key", "k", "-o", "json").json == {"id": first, "deduped": True}


def test_wait_prints_the_result_and_nothing_else(forge: Shell, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def result(self: JobHandle[int], timeout: float | None = None) -> int:
        drain(self._app)  # type: ignore[arg-type]
        return real(self, timeout)

    real = JobHandle.result
    monkeypatch.setattr(JobHandle, "result", result)
    ran = forge("enqueue", "tasks.add", 2, 3, "--wait")
    assert (ran.code, ran.out) == (0, "5\n")
    assert forge("enqueue", "tasks.add", 2, 3, "--wait", "-o", "json").json["result"] == 5


def test_waiting_in_vain_says_so(forge: Shell, project: Path) -> None:
    ran = forge("enqueue", "tasks.add", 1, "--wait", "--timeout", "0")
    assert (ran.code, ran.out) == (ExitCode.INTERNAL, "")
    note, error = ran.err.splitlines()
    assert note.endswith("nobody serves the queue default; in another terminal: forge-master -c forge.toml")
    assert error.endswith("(tasks.add) is still pending after 0 s")


def test_an_app_bound_to_another_database_in_code_is_refused(forge: Shell, project: Path) -> None:
    source = (project / "tasks.py").read_text().replace("Forge()", 'Forge("sqlite:///other.db")')
    (project / "tasks.py").write_text(source)
    said = forge.fails(ExitCode.USAGE, "enqueue", "tasks.add", 1)
    assert "the app of tasks.add is bound to sqlite:///" in said
    assert "write Forge() there" in said


def test_flags_reach_the_apps_in_the_modules(
    forge: Shell, project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = tmp_path_factory.mktemp("other") / "jobs.db"
    id = forge.ok("enqueue", "tasks.add", 1, "--database", f"sqlite:///{other}").strip()
    assert forge("show", id, "--database", f"sqlite:///{other}").code == 0
    assert not (project / "forge.db").exists()


def test_show_is_one_line_with_the_last_error_and_its_place_and_what_to_type_next(forge: Shell, project: Path) -> None:
    id = forge.ok("enqueue", "tasks.flaky").strip()
    assert forge.ok("show", id) == f"tasks.flaky  pending, attempt 0 of 2, due now\nnext:  forge cancel {id}\n"
    work(project)
    out = forge.ok("show", id[:13])
    head, following = out.splitlines()
    assert head.startswith("tasks.flaky  failed, attempt 1 of 2, again in ")
    assert head.endswith("s   ValueError: no luck  (tasks.py:13 in flaky)")
    assert following == f"next:  forge retry {id} | forge cancel {id}"
    details = forge.ok("show", "-v", id)
    assert "  queue       mail\n" in details
    assert '    File "' not in out
    assert "Traceback (most recent call last):" in details


def test_show_of_a_done_job_has_its_result(forge: Shell, project: Path) -> None:
    id = forge.ok("enqueue", "tasks.add", 20, 22).strip()
    work(project)
    out = forge.ok("show", id)
    assert out.startswith("tasks.add  done, attempt 1 of 5, took ")
    assert out.endswith("s   42\n")


def test_a_prefix_that_fits_several_jobs_is_refused(forge: Shell, sqlite_url: str) -> None:
    with Forge(sqlite_url) as app:
        for n in range(3):
            app.enqueue("k", n, id=f"0198c0de-0000-7000-8000-00000000000{n}")
        app.enqueue("k", 3, id="0198c0df-0000-7000-8000-000000000000")
    said = forge.fails(ExitCode.USAGE, "show", "0198c0de", "--database", sqlite_url)
    assert said.startswith("several jobs start with 0198c0de: 0198c0de-0000-7000-8000-000000000002, ")
    assert said.endswith("give more digits")
    assert forge("show", "0198C0DF", "--database", sqlite_url).code == 0
    assert forge("show", "ffffffffffff", "--database", sqlite_url).code == ExitCode.USAGE


def test_jobs_are_listed_by_filter_newest_first(forge: Shell, project: Path) -> None:
    ids = [forge.ok("enqueue", "tasks.add", n, "--tag", f"t{n}").strip() for n in range(3)]
    flaky = forge.ok("enqueue", "tasks.flaky").strip()
    work(project)
    listed = forge("jobs", "-o", "json").json
    assert [job["id"] for job in listed["jobs"]] == [flaky, *reversed(ids)]
    assert listed["cursor"] is None

    def found(*words: str) -> list[str]:
        return [job["id"] for job in forge("jobs", "-o", "json", *words).json["jobs"]]

    assert found("--status", "done") == list(reversed(ids))
    assert found("--status", "done", "--status", "failed", "--queue", "mail") == [flaky]
    assert found("--kind", "tasks.flaky") == [flaky]
    assert found("--tag", "t1") == [ids[1]]
    ran = forge("jobs", "--limit", "2")
    assert ran.out.count("\n") == 3
    cursor = ran.err.strip().removeprefix("more:  --cursor ")
    assert found("--cursor", cursor) == [ids[1], ids[0]]


def test_the_table_of_jobs_is_for_people(forge: Shell, project: Path) -> None:
    id = forge.ok("enqueue", "tasks.flaky").strip()
    work(project)
    head, row = forge.ok("jobs").splitlines()
    assert head.split() == ["id", "kind", "queue", "status", "attempt", "when", "error"]
    assert row.startswith(f"{id}  tasks.flaky  mail   failed  1/2      in ")
    assert row.endswith("ValueError: no luck")


def test_cancel_retry_requeue_and_delete_say_what_they_did(forge: Shell, project: Path) -> None:
    a, b = (forge.ok("enqueue", "tasks.flaky").strip() for _ in range(2))
    assert forge.ok("cancel", a) == f"{a}  cancelled\n"
    ran = forge("cancel", a)
    assert (ran.code, ran.out) == (ExitCode.USAGE, f"{a}  has ended already: cancelled\n")
    assert forge.ok("retry", a, b) == f"{a}  pending\n{b}  pending\n"
    app = work(project)
    assert app.get(a).status is Status.FAILED
    assert forge.ok("requeue", a) == f"{a}  pending\n"
    work(project)
    assert app.get(a).status is Status.DEAD, "its attempts were kept"
    assert forge.ok("show", a).splitlines()[1] == f"next:  forge retry {a} | forge delete {a}"
    assert forge("delete", a, b, "-o", "json").json == {a: "deleted", b: "deleted"}
    assert forge.ok("jobs") == "no jobs\n"


def test_a_running_job_is_told_and_not_retried(forge: Shell, url: str) -> None:
    with Forge(url) as app:
        handle = app.enqueue("k", {})
        who = app.storage.register("p", ["default"], "h", 1)
        app.storage.claim(who, "default", 1)
        assert forge("retry", handle.id, "--database", url) == (
            ExitCode.USAGE,
            f"{handle.id}  runs; nothing to do before it has ended\n",
            "",
        )
        out = forge.ok("cancel", handle.id, "--database", url)
        assert out == f"{handle.id}  runs; its worker has been told to stop\n"
        assert forge.ok("show", handle.id, "--database", url).startswith("k  in_progress, attempt 1 of 5, for 0")
        assert "cancel requested" in forge.ok("show", handle.id, "--database", url)
        assert "told to stop, delete it again" in forge.ok("delete", handle.id, "--database", url)


def test_a_running_job_is_shown_with_how_far_it_is(forge: Shell, url: str) -> None:
    with Forge(url) as app:
        handle = app.enqueue("k", {})
        who = app.storage.register("p", ["default"], "h", 1)
        (claim,) = app.storage.claim(who, "default", 1)
        app.storage.progress([(claim.id, claim.token, 37.5, "page 3 of 8")])
        assert ", 37.5 % done (page 3 of 8)\n" in forge.ok("show", handle.id, "--database", url)
        document = forge("show", handle.id, "--database", url, "-o", "json").json
        assert (document["progress"]["percent"], document["progress"]["message"]) == (37.5, "page 3 of 8")


def test_a_job_whose_key_is_taken_is_not_retried(forge: Shell, sqlite_url: str) -> None:
    with Forge(sqlite_url) as app:
        first = app.enqueue("k", {}, dedupe_key="key")
        first.cancel()
        app.enqueue("k", {}, dedupe_key="key")
    ran = forge("retry", first.id, "--database", sqlite_url)
    assert (ran.code, ran.out) == (ExitCode.USAGE, f"{first.id}  another job has its dedupe key key\n")


def test_one_unknown_id_among_several_changes_nothing(forge: Shell, project: Path) -> None:
    id = forge.ok("enqueue", "tasks.add", 1).strip()
    forge.fails(ExitCode.USAGE, "cancel", id, "0198c0de-0000-7000-8000-000000000001")
    assert forge("show", id, "-o", "json").json["status"] == "pending"


def test_an_app_that_names_the_same_file_in_other_words_is_the_same_database(forge: Shell, project: Path) -> None:
    source = (project / "tasks.py").read_text().replace("Forge()", 'Forge("sqlite:///forge.db")')
    (project / "tasks.py").write_text(source)
    forge.ok("enqueue", "tasks.add", 1)
