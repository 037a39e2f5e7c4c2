"""What is hidden of values and texts, by the names of fields."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from forge import logs
from forge.config import LoggingConfig
from forge.config.model import Config
from forge.redaction import HIDDEN, redact, redact_text, restore

pytestmark = pytest.mark.impl_free

PATTERNS = ("password", "*_token", "x-api-key", "id[0-9]")


def test_a_secret_field_is_hidden_at_any_depth_with_all_that_is_in_it() -> None:
    value = {"a": [{"Password": "p"}, {"deep": {"GH-Token": {"x": 1}}}], "X_Api_Key": None, "id7": 1, "idx": 2}
    shown = {"a": [{"Password": HIDDEN}, {"deep": {"GH-Token": HIDDEN}}], "X_Api_Key": HIDDEN, "id7": HIDDEN, "idx": 2}
    assert redact(value, PATTERNS) == shown
    assert value["id7"] == 1


def test_a_pattern_means_the_whole_name() -> None:
    value = {"password_hint": "h", "token": "t", "tokens": 3}
    assert redact(value, PATTERNS) == value


def test_without_patterns_nothing_is_copied() -> None:
    value = {"password": "p"}
    assert redact(value, ()) is value
    assert redact_text("password=p", ()) == "password=p"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("login failed: password=hunter2, user=bob", "login failed: password=***, user=bob"),
        ('{"user": "bob", "password": "a \\" b", "n": 1}', '{"user": "bob", "password": ***, "n": 1}'),
        ("{'config': {'password': 'x y'}}", "{'config': {'password': ***}}"),
        ('"{\\"password\\": \\"x y\\", \\"n\\": 1}"', '"{\\"password\\": ***, \\"n\\": 1}"'),
        ("gh_token=['a', 'b'] left", "gh_token=*** left"),
        ("password=b'x y' z", "password=*** z"),
        ('password="cut in the middle', "password=***"),
        ("X-Api-Key: Bearer abc\nnext", "X-Api-Key: ***\nnext"),
        ("https://h/?gh_token=abc&n=1", "https://h/?gh_token=***&n=1"),
        ("if password == other: PASSWORD = x", "if password == other: PASSWORD = ***"),
        ("no password was given", "no password was given"),
        ("mypassword=x password_hint=y", "mypassword=x password_hint=y"),
    ],
)
def test_a_secret_in_text_is_found_by_its_looks(text: str, shown: str) -> None:
    assert redact_text(text, PATTERNS) == shown


@pytest.mark.parametrize("piece", ["a", "-", "\\", '"', "password=", 'password="', "password=[", "a:", "(", " "])
def test_long_text_of_any_kind_takes_time_by_its_length_only(piece: str) -> None:
    """Were it by the square, this would take hours."""
    redact_text(piece * 300_000, PATTERNS)


def test_what_was_hidden_and_not_edited_stays_as_it_is_stored() -> None:
    stored = {"to": "a", "password": "p", "l": [{"gh_token": "t"}], "note": HIDDEN}
    edited = redact(stored, PATTERNS) | {"to": "b"}
    assert restore(edited, stored, PATTERNS) == stored | {"to": "b"}
    assert restore({"password": "new"}, stored, PATTERNS) == {"password": "new"}
    assert restore({"password": HIDDEN}, {}, PATTERNS) == {"password": HIDDEN}
    assert restore([{"gh_token": HIDDEN}, 2, 3], [{"gh_token": "t"}], PATTERNS) == [{"gh_token": "t"}, 2, 3]


def test_the_log_hides_them_as_text_and_as_json(tmp_path: Path) -> None:
    logger = logging.getLogger("x")
    for form in ("text", "json"):
        logs.setup(LoggingConfig(file=tmp_path / form, format=form), "mail/3", PATTERNS)
        try:
            raise ValueError("password=hunter2")
        except ValueError:
            logger.exception("called with %s", {"gh_token": "hunter2"}, extra={"password": "hunter2"})
        logger.warning("and password: hunter2")
        text = (tmp_path / form).read_text()
        assert "hunter2" not in text.replace('raise ValueError("password=hunter2")', "")
        assert "ValueError: password=***" in text
    first, _ = (tmp_path / "json").read_text().splitlines()
    assert json.loads(first)["password"] == HIDDEN


def test_the_default_hides_what_is_mostly_secret_and_not_what_counts_tokens() -> None:
    shown = redact({"db_password": 1, "access_token": 1, "api-key": 1, "max_tokens": 1, "key": 1}, Config().redact)
    assert shown == {"db_password": HIDDEN, "access_token": HIDDEN, "api-key": HIDDEN, "max_tokens": 1, "key": 1}
