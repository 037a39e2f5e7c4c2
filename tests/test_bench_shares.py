"""The simulation of shares, small: what docs/cluster.md says of it holds for every scenario and seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench import shares

pytestmark = pytest.mark.impl_free


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", shares.SCENARIOS)
def test_a_cluster_settles_soon_and_fairly_and_within_the_bound(name: str, seed: int) -> None:
    found = shares.simulate(name, pods=40, queues=30, seed=seed)
    assert found["stays"], "the leader has nothing left to change"
    assert found["running"][-1] == found["workers"], "every worker is somebody's"
    assert found["differ"] <= 1, "two pods of a queue have as many workers, or one more"
    assert found["off_quota"] < 1.5
    assert found["of_bound"] <= 1.0, "no more workers too many than newcomers have begun with"
    assert found["settled_after"] <= 40
    # What moves beyond that is for the spreading of extras over pods.
    assert found["moved"] <= 1.3 * found["moved_unavoidably"] + 30


def test_where_a_pod_goes_there_are_never_too_many() -> None:
    found = shares.simulate("one goes", pods=40, queues=30, seed=4)
    assert found["too_many"] == 0
    assert found["settled_after"] <= 10


def test_the_same_seed_is_the_same_story() -> None:
    first, again = (shares.simulate("rolling deploy", pods=20, queues=10, seed=5) for _ in range(2))
    assert first == again


def test_the_plot_is_drawn(tmp_path: Path) -> None:
    shares.draw([shares.simulate("one comes", pods=5, queues=5, each=3)], tmp_path / "shares.png")
    assert (tmp_path / "shares.png").stat().st_size > 1000
