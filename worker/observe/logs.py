"""Structured logs, as JSON or for a console, with secrets and prompts redacted. Query strings are never logged.

Every record has a level, a logger, a time and one of the categories `request`, `execution`, `performance`, `error` and
`security`; records of a job have its `request_id`.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Collection, MutableMapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import structlog
from structlog.contextvars import merge_contextvars

from darkroom.worker.observe.prompt_texts import PromptTexts

SECRET_KEYS = re.compile(r"secret|token|password|authorization|api_?key|access_key|signature|credential", re.IGNORECASE)
SECRET_IN_TEXT = re.compile(r"(?i)\b(api_key|token|signature|x-amz-[a-z-]{1,64}|secret)=([^&\s\"']+)")
HIDDEN = "[hidden]"
MAX_KEYS = 1000
PROMPT_FIELDS: Final = frozenset({"message", "reason", "exception", "error"})
"""Fields whose text may repeat a part of a prompt. The event does so too where an engine wrote it."""

PERFORMANCE: Final = ("readiness", "warm_up", "benchmark", "sensors", "engine.memory", "engine.diffusion")
SECURITY: Final = ("keys", "tls")
QUIET_LOGGERS: Final = (
    *("httpx", "httpcore", "websockets", "uvicorn.access", "alembic", "botocore", "filelock", "asyncio", "sqlalchemy"),
    *("multipart", "python_multipart", "urllib3", "tzlocal"),
)
"""Loggers of libraries that log only warnings, whatever the level."""

Record = MutableMapping[str, Any]


class Redaction:
    """Redaction of log records: values of keys that name a secret, known secrets in any text, texts of prompts."""

    def __init__(self, known_secrets: Collection[str], prompts: PromptTexts | None = None) -> None:
        self._known = sorted((secret for secret in known_secrets if len(secret) >= 4), key=len, reverse=True)
        self._prompts = prompts or PromptTexts()
        self._names_secret = lru_cache(maxsize=MAX_KEYS)(_names_secret)  # the same few keys in every record

    def __call__(self, _logger: object, _method: str, record: Record) -> dict[str, object]:
        is_of_engine = record.get("logger") == "engine"
        redacted: dict[str, object] = {}
        for name, value in record.items():
            if isinstance(value, str):
                if name in PROMPT_FIELDS or (is_of_engine and name == "event"):
                    value = self._prompts.hide(value)
            elif isinstance(value, (int, float)):  # most fields of a job's record, which cost nothing to check
                redacted[name] = HIDDEN if self._names_secret(name) else value
                continue
            redacted[name] = HIDDEN if self._names_secret(name) else self._clean(value)
        return redacted

    def _clean(self, value: object) -> object:
        if isinstance(value, dict):
            return {key: HIDDEN if _names_secret(str(key)) else self._clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._clean(item) for item in value]
        if not isinstance(value, str):
            return value
        for secret in self._known:
            value = value.replace(secret, HIDDEN)
        return SECRET_IN_TEXT.sub(rf"\1={HIDDEN}", value) if "=" in value else value


def _names_secret(key: str) -> bool:
    return SECRET_KEYS.search(key) is not None


def add_category(_logger: object, _method: str, record: Record) -> Record:
    """Set the category of a record that has none: by its level, then by its logger."""
    if "category" not in record:
        source = str(record.get("source") or record.get("logger") or "")
        if record.get("level") in ("error", "critical"):
            record["category"] = "error"
        elif source.startswith(SECURITY):
            record["category"] = "security"
        else:
            record["category"] = "performance" if source.startswith(PERFORMANCE) else "execution"
    return record


@dataclass(frozen=True, slots=True)
class LogForm:
    """Form and lowest level of the log. `style` auto: console on a terminal, else JSON."""

    style: Literal["auto", "json", "console"] = "auto"
    level: str = "info"
    has_colours: bool = True  # where the log is a terminal


class NamedLogger(structlog.WriteLogger):
    """Writer of rendered lines with the name that `add_logger_name` reads.

    Records of our own take no detour over the standard library's, which costs as much as all the rest of a record.
    """

    def __init__(self, name: str = "") -> None:
        super().__init__(sys.stderr)
        self.name = name


def set_up_logs(form: LogForm, redaction: Redaction) -> None:
    """Configure structlog and the standard library's loggers to write one format of line to stderr."""
    is_terminal = sys.stderr.isatty()
    is_console = form.style == "console" or (form.style == "auto" and is_terminal)
    console = structlog.dev.ConsoleRenderer(colors=is_terminal and form.has_colours)
    renderer: Any = console if is_console else structlog.processors.JSONRenderer()
    level = logging.getLevelNamesMapping()[form.level.upper()]
    shared: list[Any] = [
        merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        add_category,
        redaction,
    ]
    structlog.configure(
        processors=[*shared, renderer],
        logger_factory=NamedLogger,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
