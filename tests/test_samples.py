"""The samples of logs and screens in the documents are what the real thing says."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import samples
from .docs_runner import Block, blocks
from .samples import SAMPLE, SCENES, Sample

pytestmark = pytest.mark.impl_free

SAMPLES = list(samples.samples())
SCREENS = ("top",)  # their figures and the widths of their columns differ


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: f"{sample.page}:{sample.name}")
def test_a_sample_is_what_is_seen(sample: Sample) -> None:
    seen = samples.seen(sample)
    if sample.name in SCREENS:
        assert samples.shape(seen) == samples.shape(sample.text), "make samples writes it"
    else:
        assert seen == sample.text, "make samples writes it"


def test_every_scene_is_shown() -> None:
    assert {sample.name for sample in SAMPLES} == set(SCENES)


def shows_output(block: Block) -> bool:
    """Whether it has something that forge has said, and that no test runs."""
    if block.file:
        return False
    said = any(not line.startswith("$ ") for line in block.text.splitlines())
    return block.language in ("text", "json") or (block.language == "console" and block.no_run and said)


@pytest.mark.parametrize("page", samples.PAGES, ids=lambda page: page.name)
def test_what_is_shown_is_run_or_a_sample(page: Path) -> None:
    text = page.read_text("utf-8")
    typed = [block.text for block in blocks(SAMPLE.sub("", text)) if shows_output(block)]
    assert not typed, "give it a scene in tests/samples.py"
