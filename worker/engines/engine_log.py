"""EngineLog: the output of an engine's process as records of the front's log, each with its own level.

The engine writes one JSON object a record. Everything else comes from node packs and libraries: a line of text is one
record of level info, a traceback or a fatal error of the interpreter one record of level error.
"""

from __future__ import annotations

import json
import logging
import re
from collections import deque
from collections.abc import Mapping
from typing import Any

import structlog

from darkroom.worker.json.values import JsonObject

MARK = "darkroom_record"
"""Key of the engine's own records; `engine/server/log_records.py` writes it."""

SHOWN_FIELDS = {"prompt_id": "prompt_id", "node_id": "node_id", "class_type": "class_type", "traceback": "exception"}
"""Fields of a record, and their names in the front's log."""

MAX_TEXT = 20_000  # of one field
MAX_TRACE_LINES = 400
LAST_LINES = 20
LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}

_TRACE_BEGINS = re.compile(r"Traceback \(most recent call last\):|Fatal Python error: |(Current thread|Thread) 0x")
_TRACEBACK = "Traceback "  # ends with the error; what the interpreter prints of threads begins with it
_TRACE_GOES_ON = re.compile(r"\s|(Current thread|Thread) 0x|<no Python frame>|Extension modules: |$")
_ATTEMPT = re.compile(r"-\d{1,9}(\.\d{1,9})?(\.part\d{1,3}){0,2}$")


class EngineLog:
    """Reader of the lines of one process. Call `flush` where no line follows for a moment, and at the end."""

    def __init__(self) -> None:
        self._log = structlog.get_logger("engine")
        self._trace: list[str] = []
        self._last: deque[str] = deque(maxlen=LAST_LINES)

    @property
    def is_in_trace(self) -> bool:
        """True while further lines of a traceback may follow."""
        return bool(self._trace)

    def last_output(self) -> str:
        """Return the last lines, for the message about a process that has ended."""
        return " | ".join(list(self._last)[-5:]) or "no output"

    def clear(self) -> None:
        """Forget the lines of an earlier process."""
        self._last.clear()
        self._trace.clear()

    def add(self, line: str) -> None:
        """Log a line, or keep it for the record of its traceback."""
        record = _record_of(line)
        if record is not None:
            self.flush()
            self._add_record(record)
            return
        if line.strip():
            self._last.append(line)
        if self._trace and not self._ends_trace(line):
            self._trace.append(line)
            return
        if self._trace:
            is_last_of_trace = self._trace[0].startswith(_TRACEBACK)
            if is_last_of_trace:
                self._trace.append(line)
            self.flush()
            if is_last_of_trace:
                return
        if _TRACE_BEGINS.match(line):
            self._trace.append(line)
        elif line.strip():
            self._log.info(line[:MAX_TEXT])

    def flush(self) -> None:
        """Log the traceback that has been read so far."""
        if self._trace:
            lines, self._trace = self._trace, []
            last = next((line for line in reversed(lines) if line.strip()), "")
            event = last if lines[0].startswith(_TRACEBACK) else lines[0]
            self._log.error(event[:MAX_TEXT], exception="\n".join(lines)[-MAX_TEXT:])

    def _ends_trace(self, line: str) -> bool:
        return not _TRACE_GOES_ON.match(line) or len(self._trace) >= MAX_TRACE_LINES

    def _add_record(self, record: JsonObject) -> None:
        level, fields = LEVELS.get(str(record.get("level")), logging.INFO), fields_of(record)
        event = str(record.get("event", ""))[:MAX_TEXT]
        trace = str(fields.get("exception", "")).rstrip().rpartition("\n")[2]
        self._last.extend(line for line in (event, trace) if line)
        self._log.log(level, event, **fields)


def fields_of(record: JsonObject) -> dict[str, Any]:
    """Return the fields of an engine's record that the front's log shows. Pure; a node pack may have written it."""
    shown = {name: str(record[given])[-MAX_TEXT:] for given, name in SHOWN_FIELDS.items() if record.get(given)}
    shown["source"] = str(record.get("logger", ""))[:100]
    if "prompt_id" in shown:
        shown["request_id"] = _ATTEMPT.sub("", shown["prompt_id"])
    return shown


def _record_of(line: str) -> JsonObject | None:
    if not line.startswith("{") or MARK not in line:
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, Mapping) and record.get(MARK) else None
