"""What jobs say is data: in the log it cannot pass for a line of its own, steer a terminal, or fill the disk."""

from __future__ import annotations

import logging
import os
import stat
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from forge import logs
from forge.config.model import LoggingConfig
from forge.errors import LockedError
from forge.master.pod.pid_file import PidFile
from tests.master.conftest import eventually, making

pytestmark = [pytest.mark.impl_free, pytest.mark.usefixtures("root_logger_as_it_was")]

FORGED = "no luck\n12:00:00 master  4 workers ready in 0.10 s\r\x1b[2J\x9b31m\x00 end"
SHOWN = r"no luck\n12:00:00 master  4 workers ready in 0.10 s\r\x1b[2J\x9b31m\x00 end"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "forge.log"


def records(text: str) -> list[str]:
    """Lines that are not part of the one above them."""
    return [line for line in text.split("\n") if line and not line.startswith(logs.INDENT)]


def test_a_message_is_one_line_of_text_without_control_characters(file: Path) -> None:
    logs.setup(LoggingConfig(file=file), "mail/3")
    logging.getLogger("x").warning("%s", FORGED, extra={"who": "mail/3\nx"})
    (line,) = file.read_text().splitlines()
    assert line.endswith(rf" mail/3\nx  {SHOWN}")


def test_an_exceptions_own_lines_are_indented_and_escaped(file: Path) -> None:
    logs.setup(LoggingConfig(file=file), "mail/3")
    try:
        raise ValueError(FORGED)
    except ValueError:
        logging.getLogger("x").exception("oh", stack_info=True)
    text = file.read_bytes().decode()
    (first,) = records(text)
    assert first.endswith("mail/3  oh")
    assert "  Traceback (most recent call last):\n" in text
    assert "\n  12:00:00 master  4 workers ready in 0.10 s" in text
    assert not any(character in text for character in "\r\x1b\x9b\x00")


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(), st.text(), st.text())
def test_whatever_is_logged_is_one_record(message: str, who: str, raised: str) -> None:
    record = logging.LogRecord("x", logging.INFO, "f.py", 1, "%s", (message,), None)
    error = ValueError(raised)
    record.exc_info = (ValueError, error, None)
    record.who, record.details = who, raised
    text = logs.TextFormatter("mail/3").format(record)
    assert len(records(text)) == 1
    assert not [c for c in text if unicodedata.category(c) == "Cc" and c not in "\t\n"]
    assert len(logs.JsonFormatter("mail/3").format(record).splitlines()) == 1


def test_json_has_the_message_as_it_was(file: Path) -> None:
    logs.setup(LoggingConfig(file=file, format="json"), "mail/3")
    logging.getLogger("x").warning("%s", FORGED)
    (line,) = file.read_bytes().splitlines()
    assert orjson.loads(line)["message"] == FORGED


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_long_message_is_cut_and_says_by_how_much(file: Path, form: str) -> None:
    logs.setup(LoggingConfig(file=file, format=form), "mail/3")  # type: ignore[arg-type]
    logging.getLogger("x").warning("a" * 1_000_000)
    said = file.read_text()
    assert f"{'a' * 8192}… (991,808 more characters)" in said
    assert len(said) < 9000


@pytest.mark.parametrize("form", ["text", "json"])
def test_of_a_long_traceback_the_end_is_kept(file: Path, form: str) -> None:
    logs.setup(LoggingConfig(file=file, format=form), "mail/3")  # type: ignore[arg-type]
    try:
        raise ValueError("b" * 1_000_000 + "the end")
    except ValueError:
        logging.getLogger("x").exception("oh", extra={"body": "c" * 1_000_000})
    said = file.read_text()
    assert "bbb" in said and "the end" in said and len(said) < 200_000


def test_the_stacks_of_the_master_are_below_their_threads_name(file: Path) -> None:
    from forge.master.pod.log import log

    logs.setup(LoggingConfig(file=file), "master")
    for thread, where in logs.stacks():
        log(thread, details=where)
    lines = file.read_text().splitlines()
    assert any(line.endswith("master  thread MainThread") for line in lines)
    assert any(line.startswith("    File ") for line in lines)


def test_a_tab_is_no_control_character_of_harm(file: Path) -> None:
    assert logs.escaped("a\tb\nc\u2028d") == "a\tb\\nc\\u2028d"


# -- modes -----------------------------------------------------------------------------------------------------


@pytest.fixture(params=[0, 0o022, 0o077, 0o777])
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_log_file_is_for_its_owner_alone_whatever_the_umask(file: Path, umask: int) -> None:
    logs.setup(LoggingConfig(file=file), "master")
    logging.getLogger("x").warning("one")
    assert mode(file) == 0o600
    file.rename(file.with_suffix(".1"))
    logs.reopen()
    logging.getLogger("x").warning("two")
    assert mode(file) == 0o600
    assert "two" in file.read_text()


def test_a_log_file_that_is_there_stays_as_its_owner_made_it(file: Path) -> None:
    file.touch()
    file.chmod(0o640)
    logs.setup(LoggingConfig(file=file), "master")
    logging.getLogger("x").warning("one")
    assert mode(file) == 0o640


@pytest.mark.parametrize("wanted", [0o644, 0o600])
def test_a_pid_file_has_its_mode_whatever_the_umask(tmp_path: Path, umask: int, wanted: int) -> None:
    path = tmp_path / "forge.pid"
    held = PidFile(path, mode=wanted)
    assert mode(path) == wanted
    with pytest.raises(LockedError):
        PidFile(path, mode=wanted)
    held.close()


def test_a_pid_file_left_behind_is_taken_over_with_its_mode(tmp_path: Path, umask: int) -> None:
    path = tmp_path / "forge.pid"
    path.write_text("")
    path.chmod(0o666)
    held = PidFile(path)
    assert mode(path) == 0o644
    held.close()


@pytest.mark.parametrize("umask", [0, 0o077], indirect=True)
def test_a_masters_files_have_their_modes_whatever_the_umask(tmp_path: Path, sqlite_url: str, umask: int) -> None:
    for project in making(tmp_path, sqlite_url):
        project.settings(f'[logging]\nfile = "{tmp_path}/forge.log"\n[queues.default]\nmax_workers = 1\n')
        pod = project.launch("--pid-file", "forge.pid")
        eventually(lambda: (tmp_path / "forge.log").exists() and "ready in" in (tmp_path / "forge.log").read_text())
        modes = [mode(tmp_path / name) for name in ("forge.log", "forge.pid", "forge.db-master")]
        assert pod.stop() == 0
        assert modes == [0o600, 0o644, 0o600]
