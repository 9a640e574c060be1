"""Set-up of the engine's log: text for people, or one JSON object a record for a parent process."""

from __future__ import annotations

import copy
import json
import logging
import sys
from typing import Literal

from darkroom.engine.log_context import log_context
from darkroom.engine.settings import LogLevel

LogFormat = Literal["text", "json"]

TEXT_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
MARK = "darkroom_record"
"""Key of a JSON record that distinguishes it from JSON that a node pack prints; its value is the format's version."""

PROMPT_ENDS = "engine.prompts"
"""Logger of the end of each prompt. A parent that reads records logs it itself, so there it is for debugging."""


def shown_logger(record: logging.LogRecord) -> str:
    """Return the name of the record's logger without the package's, as logs have shown it from the first version on."""
    return record.name.removeprefix("darkroom.")


class TextRecords(logging.Formatter):
    """Formatter of one line a record but for tracebacks."""

    def __init__(self) -> None:
        super().__init__(TEXT_FORMAT)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the library's name
        """Return the line without a traceback."""
        shown = copy.copy(record)
        shown.name = shown_logger(record)
        return super().formatMessage(shown)


class JsonRecords(logging.Formatter):
    """Formatter of one JSON object on one line, with the prompt and node that the record belongs to."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as JSON: level, logger, event, time (epoch seconds); where known ids and a traceback."""
        context = log_context()
        shown = {
            MARK: 1,
            "level": record.levelname.lower(),
            "logger": shown_logger(record),
            "event": record.getMessage(),
            "time": record.created,
            "prompt_id": context.prompt_id,
            "node_id": context.node_id,
            "class_type": context.class_type,
            "traceback": self.formatException(record.exc_info) if record.exc_info else "",
        }
        return json.dumps({name: value for name, value in shown.items() if value != ""})


def set_up_logging(level: LogLevel, form: LogFormat = "text") -> None:
    """Log everything to standard error; as text one line a record but for tracebacks."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextRecords() if form == "text" else JsonRecords())
    logging.basicConfig(level=level, handlers=[handler])
    if form == "json" and logging.getLogger().level >= logging.INFO:
        logging.getLogger(PROMPT_ENDS).setLevel(logging.WARNING)
