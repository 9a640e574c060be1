"""Structured logs, as JSON or for a console, with secrets redacted. Query strings are never logged."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Collection, MutableMapping
from typing import Any, Literal

import structlog

SECRET_KEYS = re.compile(r"secret|token|password|authorization|api_?key|access_key|signature|credential", re.IGNORECASE)
SECRET_IN_TEXT = re.compile(r"(?i)\b(api_key|token|signature|x-amz-[a-z-]{1,64}|secret)=([^&\s\"']+)")
HIDDEN = "[hidden]"


class Redaction:
    """Redaction of secrets in log records: values of keys that name one, and the known secrets in any text."""

    def __init__(self, known_secrets: Collection[str]) -> None:
        self._known = sorted((secret for secret in known_secrets if len(secret) >= 4), key=len, reverse=True)

    def __call__(self, _logger: object, _method: str, record: MutableMapping[str, Any]) -> dict[str, object]:
        return {key: HIDDEN if SECRET_KEYS.search(key) else self._clean(value) for key, value in record.items()}

    def _clean(self, value: object) -> object:
        if isinstance(value, dict):
            return {key: HIDDEN if SECRET_KEYS.search(str(key)) else self._clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._clean(item) for item in value]
        if not isinstance(value, str):
            return value
        for secret in self._known:
            value = value.replace(secret, HIDDEN)
        return SECRET_IN_TEXT.sub(rf"\1={HIDDEN}", value)


def set_up_logs(style: Literal["auto", "json", "console"], *, is_debug: bool, known_secrets: Collection[str]) -> None:
    """Configure structlog and the standard library's loggers to write one format of line to stderr."""
    is_console = style == "console" or (style == "auto" and sys.stderr.isatty())
    renderer: Any = structlog.dev.ConsoleRenderer() if is_console else structlog.processors.JSONRenderer()
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        Redaction(known_secrets),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG if is_debug else logging.INFO),
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
    root.setLevel(logging.INFO)
    for name in ("httpx", "httpcore", "websockets", "uvicorn.access", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
