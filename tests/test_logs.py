"""Log lines: what a person and what a machine reads, with the job they belong to, through rotation."""

from __future__ import annotations

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import orjson
import pytest

from forge import logs
from forge.config.model import LoggingConfig
from forge.errors import ConfigError

pytestmark = [pytest.mark.impl_free, pytest.mark.usefixtures("root_logger_as_it_was")]

ID = UUID("0198c0de-0000-7000-8000-000000000007")


@dataclass(frozen=True)
class Running:
    id: UUID = ID
    kind: str = "tasks.add"
    queue: str = "mail"
    attempt: int = 2


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "forge.log"


def lines(file: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in file.read_text().splitlines()]


def test_text_is_the_time_who_and_the_message(file: Path) -> None:
    logs.setup(LoggingConfig(file=file), "mail/3")
    logging.getLogger("x").info("sent %d", 5)
    logging.getLogger("x").info("of the queue", extra={"who": "mail"})
    first, second = file.read_text().splitlines()
    assert re.fullmatch(r"\d\d:\d\d:\d\d mail/3  sent 5", first)
    assert second.endswith(" mail  of the queue")


def test_a_printed_line_is_a_record_whatever_the_level(file: Path) -> None:
    logs.setup(LoggingConfig(file=file, format="json", level="error"), "mail/3")
    logs.printed("100 %s", "stdout")
    logs.printed("from below", "stderr", who="mail/4", job=Running())
    first, second = lines(file)
    assert (first["message"], first["who"], first["stream"], first["level"]) == ("100 %s", "mail/3", "stdout", "info")
    assert "job_id" not in first
    assert (second["who"], second["job_id"], second["queue"], second["level"]) == ("mail/4", str(ID), "mail", "warning")


def test_a_line_printed_before_there_is_a_log_goes_to_standard_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_handler", None)
    logs.printed("too early\x1b", "stdout")
    assert capfd.readouterr().err == "too early\\x1b\n"


def test_text_has_the_traceback_below(file: Path) -> None:
    logs.setup(LoggingConfig(file=file), "mail/3")
    try:
        raise ValueError("no luck")
    except ValueError:
        logging.getLogger("x").exception("oh")
    text = file.read_text().splitlines()
    assert text[1] == "  Traceback (most recent call last):"
    assert text[-1] == "  ValueError: no luck"


def test_json_carries_the_job_and_what_was_passed_as_extra(file: Path) -> None:
    logs.setup(LoggingConfig(file=file, format="json", level="debug"), "mail/3")
    logging.getLogger("shop").debug("before")
    token = logs.current_job.set(Running())
    try:
        logging.getLogger("shop").warning("paid %s", "ann", extra={"order": 7, "queue": "a library's own"})
    finally:
        logs.current_job.reset(token)
    before, paid = lines(file)
    assert before.keys() == {"time", "level", "logger", "who", "message"}
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", paid.pop("time"))
    assert paid == {
        "level": "warning",
        "logger": "shop",
        "who": "mail/3",
        "message": "paid ann",
        "job_id": str(ID),
        "kind": "tasks.add",
        "queue": "a library's own",
        "attempt": 2,
        "order": 7,
    }


def test_json_has_the_exception_as_text(file: Path) -> None:
    logs.setup(LoggingConfig(file=file, format="json"), "w")
    try:
        raise ValueError("no luck")
    except ValueError:
        logging.getLogger("x").exception("oh")
    (line,) = lines(file)
    assert line["exception"].startswith("Traceback (most recent call last):")
    assert line["exception"].endswith("ValueError: no luck")


def test_no_value_keeps_a_line_from_being_written() -> None:
    endless: list[Any] = []
    endless.append(endless)
    for odd in (object(), 2**70, "\ud800", endless, {1: {2}}):
        # Not through a logger: pytest would capture the surrogate, too, and cannot pass it on.
        record = logging.makeLogRecord({"msg": "odd \ud800", "odd": odd})
        assert orjson.loads(logs.JsonFormatter("w").format(record))["message"] == "odd \\ud800"


def test_less_important_lines_are_not_written(file: Path) -> None:
    logs.setup(LoggingConfig(file=file, level="warning"), "w")
    logging.getLogger("x").info("chatter")
    assert file.read_text() == ""


def test_setting_up_again_replaces_the_first(file: Path, tmp_path: Path) -> None:
    logs.setup(LoggingConfig(file=tmp_path / "old.log"), "zygote")
    logs.setup(LoggingConfig(file=file), "mail/3")
    logging.getLogger("x").info("once")
    assert (tmp_path / "old.log").read_text() == ""
    assert file.read_text().count("once") == 1


def test_a_rotated_file_is_followed_and_a_reopened_one_is_new(file: Path) -> None:
    logs.setup(LoggingConfig(file=file), "w")
    log = logging.getLogger("x")
    log.info("one")
    file.rename(file.with_suffix(".1"))
    log.info("two")
    assert "two" in file.read_text()
    file.rename(file.with_suffix(".2"))
    logs.reopen()
    assert file.read_text() == "", "there at once, before the next line"
    log.info("three")
    assert "three" in file.read_text()


def test_a_file_that_cannot_be_written_is_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot write the log file .*: No such file or directory; see file in"):
        logs.setup(LoggingConfig(file=tmp_path / "no" / "forge.log"), "w")


def test_without_a_file_lines_go_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    logs.setup(LoggingConfig(), "w")
    logging.getLogger("x").info("hello")
    logs.reopen()
    assert capsys.readouterr().err.endswith(" w  hello\n")
