"""A default timeout of sockets, set by whatever Python loads first: forge's own sockets do not take it."""

from __future__ import annotations

import signal

import pytest

from .conftest import Project, eventually

pytestmark = pytest.mark.impl_free


@pytest.mark.parametrize("seconds", ["0.05", "0.0"])
def test_a_pod_whose_sockets_would_time_out_works_as_any_other(project: Project, seconds: str) -> None:
    """In the master, the zygote and its workers alike."""
    project.configure(1)
    (project.folder / "sitecustomize.py").write_text(f"import socket\nsocket.setdefaulttimeout({seconds})\n")
    project.env["PYTHONPATH"] = str(project.folder)
    pod = project.start()
    jobs = [project.enqueue("slow", n, 0.2) for n in range(3)]  # each for longer than the timeout
    eventually(lambda: len(project.events("END")) == 3)
    assert [job.result(timeout=30) for job in jobs] == [0, 1, 2]  # type: ignore[attr-defined]
    assert len({pid for _, _, pid in project.events("END")}) == 1, "one worker has run all of them"
    pod.process.send_signal(signal.SIGHUP)
    eventually(lambda: pod.says("1 worker replaced"))
    assert project.enqueue("add", 2, 3).result(timeout=30) == 5  # type: ignore[attr-defined]
    assert not pod.says("killed") and pod.stop() == 0
