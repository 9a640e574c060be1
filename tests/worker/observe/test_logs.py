"""Log lines: no secret and no prompt passes into one; level, category and colours."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import time

import pytest

from darkroom.worker.observe.logs import Redaction, add_category
from darkroom.worker.observe.prompt_texts import PromptTexts


def test_secrets_are_hidden_by_name_by_value_and_in_query_strings() -> None:
    redact = Redaction(["known-secret"])
    record = redact(
        None,
        "info",
        {
            "event": "asked https://x/y?api_key=abc&a=1 with known-secret",
            "webhook_secret": "x",
            "body": {"s3": {"secret_access_key": "y", "bucket": "b"}, "list": ["known-secret"]},
        },
    )
    assert record["event"] == "asked https://x/y?api_key=[hidden]&a=1 with [hidden]"
    assert record["webhook_secret"] == "[hidden]"
    assert record["body"] == {"s3": {"secret_access_key": "[hidden]", "bucket": "b"}, "list": ["[hidden]"]}


def test_a_long_line_full_of_what_looks_like_a_name_of_a_secret_costs_no_time() -> None:
    """The engine's lines are logged on the event loop, and a prompt decides what is in them."""
    began = time.process_time()
    Redaction([])(None, "info", {"event": "x-amz-" * 150_000})
    assert time.process_time() - began < 20  # 2 hours when each place is read to the end of the line


def test_the_texts_of_prompts_are_hidden_where_a_record_repeats_them_and_nowhere_else() -> None:
    texts = PromptTexts()
    texts.hold("one", {"1": {"inputs": {"text": "completed", "other": "a cat"}}})
    redact = Redaction([], texts)
    shown = redact(None, "info", {"event": "saw a cat", "logger": "engine", "state": "completed", "message": "a cat"})
    assert shown == {"event": "saw [prompt]", "logger": "engine", "state": "completed", "message": "[prompt]"}
    assert redact(None, "info", {"event": "a cat", "logger": "jobs"})["event"] == "a cat"


@pytest.mark.parametrize(
    ("record", "category"),
    [
        ({"logger": "jobs", "level": "info"}, "execution"),
        ({"logger": "jobs", "level": "error"}, "error"),
        ({"logger": "engine", "source": "engine.memory.model_pool", "level": "warning"}, "performance"),
        ({"logger": "keys", "level": "warning"}, "security"),
        ({"logger": "access", "level": "info", "category": "request"}, "request"),
    ],
)
def test_every_record_has_a_category(record: dict[str, str], category: str) -> None:
    assert add_category(None, "", record)["category"] == category


LINES = """
import sys, structlog
from darkroom.worker.observe.logs import LogForm, Redaction, set_up_logs
set_up_logs(LogForm(sys.argv[1], sys.argv[2], has_colours=sys.argv[3] == "yes"), Redaction([]))
for level in ("debug", "info", "warning"):
    getattr(structlog.get_logger("x"), level)("of level " + level)
"""


def lines_of(style: str, level: str, colours: str = "yes", *, is_terminal: bool = False) -> str:
    command = [sys.executable, "-c", LINES, style, level, colours]
    if not is_terminal:
        return subprocess.run(command, capture_output=True, text=True, check=True).stderr
    parent, child = pty.openpty()
    subprocess.run(command, stderr=child, check=True)
    os.close(child)
    return os.read(parent, 100_000).decode()


def test_colours_are_for_terminals_and_go_where_they_are_not_wanted() -> None:
    assert "\x1b[" not in lines_of("console", "info")
    assert "\x1b[" in lines_of("console", "info", is_terminal=True)
    assert "\x1b[" not in lines_of("console", "info", "no", is_terminal=True)


def test_the_level_is_the_lowest_that_is_logged() -> None:
    assert lines_of("json", "debug").count("of level") == 3
    assert lines_of("json", "warning").count("of level") == 1
