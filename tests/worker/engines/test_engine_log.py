"""Lines that an engine's process writes, as records of the front's log."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from structlog.testing import capture_logs

from darkroom.engine.log_context import logged_as
from darkroom.engine.server.log_records import JsonRecords
from darkroom.worker.engines.engine_log import EngineLog, fields_of

TRACE = ["Traceback (most recent call last):", '  File "pack.py", line 1', "    x()", "ValueError: bad", "after"]


def logged(*lines: str) -> list[Any]:
    with capture_logs() as records:
        engine_log = EngineLog()
        for line in lines:
            engine_log.add(line)
        engine_log.flush()
    return records


def record(**fields: Any) -> str:
    return json.dumps({"darkroom_record": 1, "logger": "engine.runtime", **fields})


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error", "critical"])
def test_a_record_keeps_its_level_and_has_the_ids_of_its_job(level: str) -> None:
    line = record(level=level, event="Draw failed", prompt_id="my-job-2", node_id="7", class_type="Draw", traceback="T")
    (shown,) = logged(line)
    assert (shown["log_level"], shown["event"], shown["exception"]) == (level, "Draw failed", "T")
    assert (shown["request_id"], shown["prompt_id"], shown["node_id"]) == ("my-job", "my-job-2", "7")
    assert shown["source"] == "engine.runtime"


def test_the_engines_own_records_are_understood() -> None:
    with logged_as("my-job-1", "7", "Draw"):
        line = JsonRecords().format(logging.LogRecord("engine.x", logging.WARNING, "f", 1, "no %s", ("a",), None))
    (shown,) = logged(line)
    assert (shown["log_level"], shown["event"], shown["source"]) == ("warning", "no a", "engine.x")
    assert (shown["request_id"], shown["node_id"], shown["class_type"]) == ("my-job", "7", "Draw")


def test_a_traceback_is_one_record_of_level_error() -> None:
    trace, after = logged(*TRACE)
    assert (trace["log_level"], trace["event"]) == ("error", "ValueError: bad")
    assert trace["exception"] == "\n".join(TRACE[:4])
    assert (after["log_level"], after["event"]) == ("info", "after")


def test_a_fatal_error_of_the_interpreter_is_one_record() -> None:
    lines = ["Fatal Python error: Segmentation fault", "", "Current thread 0x1 (most recent call first):", "  File 'x'"]
    (shown,) = logged(*lines)
    assert (shown["log_level"], shown["event"]) == ("error", lines[0])


@pytest.mark.parametrize(
    "line", ["{", '{"darkroom_record": 1', '["darkroom_record"]', '{"darkroom_record": 0}', "text"]
)
def test_what_is_no_record_is_a_line_of_text(line: str) -> None:
    (shown,) = logged(line)
    assert (shown["log_level"], shown["event"]) == ("info", line)


def test_a_forged_record_sets_no_other_field_and_no_endless_one() -> None:
    shown = fields_of({"category": "security", "state": "completed", "prompt_id": "x" * 100_000, "logger": "n" * 1000})
    assert set(shown) == {"source", "prompt_id", "request_id"}
    assert len(shown["prompt_id"]) == 20_000 and len(shown["source"]) == 100


def test_the_last_output_of_a_process_is_readable() -> None:
    engine_log = EngineLog()
    engine_log.add("a line")
    engine_log.add(record(level="critical", event="could not start", traceback="Traceback\nOSError: none"))
    assert engine_log.last_output() == "a line | could not start | OSError: none"
