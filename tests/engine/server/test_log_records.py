"""Structured records of the engine's log."""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

from darkroom.engine.log_context import log_context, logged_as
from darkroom.engine.server.log_records import JsonRecords


def formatted(level: int, text: str, *, has_error: bool = False) -> Any:
    error = sys.exc_info() if has_error else None
    return json.loads(JsonRecords().format(logging.LogRecord("engine.x", level, "f", 1, text, ("a",), error)))


def test_a_record_has_its_level_and_the_node_that_runs() -> None:
    with logged_as("job-1", "7", "Draw"):
        shown = formatted(logging.WARNING, "no %s")
    assert (shown["level"], shown["logger"], shown["event"]) == ("warning", "engine.x", "no a")
    assert (shown["prompt_id"], shown["node_id"], shown["class_type"]) == ("job-1", "7", "Draw")
    assert "prompt_id" not in formatted(logging.INFO, "%s") and log_context().prompt_id == ""


def test_a_traceback_is_part_of_its_record_on_one_line() -> None:
    try:
        raise ValueError("bad")
    except ValueError:
        shown = formatted(logging.ERROR, "%s failed", has_error=True)
    assert shown["traceback"].startswith("Traceback") and shown["traceback"].endswith("ValueError: bad")
