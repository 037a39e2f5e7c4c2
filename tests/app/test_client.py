"""The app: when it connects, how it makes its schema, what it finds, and that it survives a fork."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from forge import Dead, Forge, InvalidJob, JobNotFound, SchemaError, Status, UsageError

from .helpers import run, work_off


@pytest.fixture
def app(url: str) -> Iterator[Forge]:
    with Forge(url) as app:
        yield app


def test_nothing_is_opened_before_it_is_needed(tmp_path: Path) -> None:
    file = tmp_path / "new.db"
    with Forge(f"sqlite:///{file}") as app:

        @app.task
        def f() -> None: ...

        f.using(queue="q")
        app.job("mail", {})
        app.close()
        assert not file.exists()
        f.enqueue()
        assert file.exists()


def test_a_new_sqlite_file_is_made_ready_by_the_first_enqueue(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    with Forge(url) as app:
        handle = app.enqueue("mail", {"n": 1})
    with Forge(url) as again:
        assert again.get(handle.id).job().payload == {"n": 1}


def test_many_threads_that_come_first_open_one_storage(tmp_path: Path) -> None:
    with Forge(f"sqlite:///{tmp_path}/new.db") as app:
        start = threading.Barrier(8)

        def enqueue() -> None:
            start.wait()
            app.enqueue("mail", {})

        threads = [threading.Thread(target=enqueue) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(list(app.jobs())) == 8


def test_a_postgres_without_the_schema_says_what_to_run(empty_pg_url: str) -> None:
    with Forge(empty_pg_url) as app, pytest.raises(SchemaError, match="forge db migrate"):
        app.enqueue("mail", {})


def test_a_schema_of_another_name_is_used(empty_pg_url: str) -> None:
    from forge.storage import open_storage

    with open_storage(empty_pg_url, schema="chores") as storage:
        storage.migrate()
    with Forge(empty_pg_url, schema="chores") as app:
        assert app.enqueue("mail", {}).status == "pending"
    with Forge(empty_pg_url) as app, pytest.raises(SchemaError):
        app.enqueue("mail", {})


def test_the_database_comes_from_the_environment_or_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("FORGE_DATABASE_URL", raising=False)
    with Forge() as app:
        app.enqueue("mail", {})
    assert (tmp_path / "forge.db").exists()
    monkeypatch.setenv("FORGE_DATABASE_URL", f"sqlite:///{tmp_path}/other.db")
    with Forge() as app:
        app.enqueue("mail", {})
    assert (tmp_path / "other.db").exists()


def test_the_payload_limit_of_the_config_file_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "forge.toml").write_text("max_payload = 20\n")
    with pytest.raises(InvalidJob, match="the limit is 20"):
        Forge().job("mail", "x" * 30)


def test_a_closed_app_can_be_used_again(app: Forge) -> None:
    handle = app.enqueue("mail", {})
    app.close()
    app.close()
    assert handle.status == "pending"


def _enqueue_in_child(app: Forge, pipe: Any) -> None:
    try:
        pipe.send(str(app.enqueue("child", {"pid": os.getpid()}).id))
    except BaseException as error:
        pipe.send(repr(error))
        raise


def test_a_forked_child_opens_a_storage_of_its_own(app: Forge) -> None:
    mine = app.enqueue("parent", {})
    inherited = app.storage
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    child = fork.Process(target=_enqueue_in_child, args=(app, there))
    child.start()
    answer = here.recv()
    child.join()
    assert child.exitcode == 0, answer
    assert app.storage is inherited
    assert app.get(answer).job().payload == {"pid": child.pid}
    assert mine.status == "pending"
    assert len(list(app.jobs())) == 2


def test_get_refuses_what_is_no_id_and_what_is_no_job(app: Forge) -> None:
    with pytest.raises(InvalidJob, match="id must be a UUID"):
        app.get("nonsense")
    with pytest.raises(JobNotFound):
        app.get(uuid.uuid4())
    with pytest.raises(JobNotFound):
        run(app.aget(str(uuid.uuid4())))


def test_jobs_are_listed_newest_first_and_narrowed_by_filters(app: Forge) -> None:
    red = [app.enqueue("mail", n, tags=["red"]) for n in range(3)]
    blue = [app.enqueue("page", n, queue="urgent", tags=["blue", "red"]) for n in range(2)]
    work_off(app, "urgent", Dead("x"))

    def ids(**filters: Any) -> list[uuid.UUID]:
        async def gathered() -> list[uuid.UUID]:
            return [job.id async for job in app.ajobs(**filters)]

        found = [job.id for job in app.jobs(**filters)]
        assert run(gathered()) == found
        return found

    everything = [h.id for h in reversed(red + blue)]
    assert ids() == everything
    assert ids(status="dead") == ids(status=[Status.DEAD]) == ids(queue="urgent") == everything[:2]
    assert ids(kind=["mail", "other"]) == ids(status={"pending", "failed"}) == everything[2:]
    assert ids(tag="red", limit=3) == everything[:3]
    assert ids(tag="blue", status="pending") == ids(limit=0) == []
    with pytest.raises(UsageError, match=r"'finished' is not a valid Status; use pending, failed, in_progress"):
        ids(status="finished")


def test_a_long_listing_is_fetched_page_by_page(app: Forge, monkeypatch: pytest.MonkeyPatch) -> None:
    handles = app.enqueue_many([app.job("mail", n) for n in range(450)])
    pages: list[int] = []
    find = app.storage.find

    def counted(where: Any, limit: int = 50, cursor: str | None = None) -> Any:
        pages.append(limit)
        return find(where, limit, cursor)

    monkeypatch.setattr(app.storage, "find", counted)
    listing = app.jobs()
    assert pages == []
    assert next(listing).id == handles[-1].id
    assert pages == [200]
    assert len([*listing]) == 449
    assert len(list(app.jobs(limit=250))) == 250
    assert pages == [200, 200, 200, 200, 50]


def test_jobs_are_operated_on_by_id_text_handle_or_many_of_them(app: Forge) -> None:
    a, b, c = (app.enqueue("mail", n) for n in range(3))
    assert app.cancel(a) == {a.id: "cancelled"}
    assert run(app.acancel([str(b.id), c.id, uuid.uuid4()])) == {b.id: "cancelled", c.id: "cancelled"}
    assert app.retry([a, str(b.id)]) == {a.id, b.id}
    assert run(app.arequeue(c)) == {c.id}
    assert run(app.aretry(c)) == {c.id}
    assert app.delete([a, b]) == {a.id: "deleted", b.id: "deleted"}
    assert run(app.adelete(c.id)) == {c.id: "deleted"}
    assert list(app.jobs()) == []


def test_many_jobs_are_stored_together_or_not_at_all(app: Forge) -> None:
    with pytest.raises(InvalidJob):
        app.enqueue_many(app.job("mail", n if n < 5 else {n}) for n in range(10))
    assert list(app.jobs()) == []
    assert app.enqueue_many([]) == run(app.aenqueue_many([])) == []
    assert len(run(app.aenqueue_many([app.job("mail", n) for n in range(30)]))) == 30
    assert sorted(job.payload for job in app.jobs()) == list(range(30))


def test_an_async_enqueue_stores_the_same_job(app: Forge) -> None:
    async def scenario() -> tuple[Any, Any]:
        handle = await app.aenqueue("mail", {"n": 1}, queue="q", tags=["t"])
        return await handle.ajob(), await (await app.aget(handle.id)).ajob()

    one, two = run(scenario())
    assert one == two
    assert (one.kind, one.payload, one.queue, one.tags) == ("mail", {"n": 1}, "q", ("t",))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=20), inner, max_size=5),
    max_leaves=20,
)


def _storable(value: Any) -> bool:
    """What the documentation says can be stored."""
    if isinstance(value, dict):
        return all(_storable(key) and _storable(item) for key, item in value.items())
    if isinstance(value, list):
        return all(map(_storable, value))
    if isinstance(value, str):
        return "\0" not in value and value.encode(errors="replace").decode() == value
    if isinstance(value, float):
        return math.isfinite(value)
    return not isinstance(value, int) or -(2**63) <= value < 2**64


@given(value=JSON)
@example(value={"big": 2**64 - 1, "small": -(2**63)})
@example(value=2**64)
@example(value=[1e308, 5e-324, -0.0, 0.1])
@example(value="\u2028\ufeff\U0010ffff\x7f\x01")
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_payload_comes_back_as_it_was_or_is_refused(app: Forge, value: Any) -> None:
    if _storable(value):
        stored = app.enqueue("any", value).job().payload
        assert json.dumps(stored) == json.dumps(value)
    else:
        with pytest.raises(InvalidJob, match=r"^payload"):
            app.enqueue("any", value)
