"""The names that people give to pods."""

from __future__ import annotations

import os
import re

import pytest

from forge.config import Config
from forge.master.pod.identity import own_label, short_id
from forge.storage import open_storage

from .conftest import Project


@pytest.mark.parametrize(
    ("text", "digits"), [("01J9ZK3QP7V8M2T4R6W0E9K7QF", "49bf"), ("01J9ZK3QP7V8M2T4R6W0E9K7QG", "cf47")]
)
def test_the_digits_are_those_of_the_systems_before(text: str, digits: str) -> None:
    assert short_id(text) == digits


def test_every_length_of_text_has_digits() -> None:
    found = {short_id("x" * n) for n in range(64)}
    assert all(re.fullmatch("[0-9a-f]{4}", digits) for digits in found)
    assert len(found) > 60


def test_a_label_has_the_parts_that_were_given() -> None:
    assert own_label(Config()) is None
    assert own_label(Config(worker_version="1.4", worker_id="blue")) is None
    assert own_label(Config(worker_prefix="rates", worker_id="blue")) == "rates-worker-blue"
    assert own_label(Config(worker_prefix="rates", worker_version="1.4", worker_id="blue")) == "rates-worker-1.4-blue"
    digits = own_label(Config(worker_prefix="rates"))
    assert digits is not None
    assert re.fullmatch("rates-worker-[0-9a-f]{4}", digits)
    assert own_label(Config(worker_prefix="rates")) == digits


@pytest.mark.impl_free
def test_a_pod_is_known_by_its_label(project: Project) -> None:
    project.env |= {"FORGE_WORKER_PREFIX": "rates", "FORGE_WORKER_VERSION": "1.4"}
    pod = project.start()
    with open_storage(project.url) as storage:
        (found,) = storage.pods()
    assert found.pid == pod.process.pid != os.getpid()
    assert found.label is not None
    assert re.fullmatch("rates-worker-1.4-[0-9a-f]{4}", found.label)
