"""Many jobs enqueued by one."""

from __future__ import annotations

from forge import Context, Forge
from forge.inline import execute
from tests.worker.test_inline import claim


def test_each_further_child_is_added_to_those_before_without_copying_them(app: Forge) -> None:
    lists: set[int] = set()

    @app.task(name="k")
    def task(ctx: Context) -> None:
        for number in range(20_000):
            ctx.enqueue("child", number)
            lists.add(id(ctx._children))
        ctx.enqueue_many([app.job("child", 20_000), app.job("child", 20_001)])

    ending = execute(claim("k", payload={"args": [], "kwargs": {}}), app.tasks)
    assert [int(child.payload) for child in ending.children] == list(range(20_002))
    assert len(lists) == 1
