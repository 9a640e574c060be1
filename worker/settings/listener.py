"""Settings of the HTTP listener: its address, TLS, limits on connections and bodies; the folders; the log."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from darkroom.worker.settings.section import LOWER, MIB, NaturalInt, Port, PositiveInt, PositiveSeconds, Section, env

LogLevel = Literal["debug", "info", "warning", "error", "critical"]
_SWITCHES: Final = TypeAdapter(bool)


def _read_level(value: object) -> object:
    """Return a level, where DEBUG gives a truth value; anything else is left to the check of levels."""
    try:
        return "debug" if _SWITCHES.validate_python(value) else None
    except ValidationError:
        return value


class ListenerSettings(Section):
    """Address of the HTTP server."""

    host: Annotated[str, env("WORKER_HOST")] = "127.0.0.1"
    """Address to listen on. Other addresses than this machine's need a key, `MASTER_TOKEN` or `UNSECURED`. The image
    sets 0.0.0.0; under Vast that is the default."""

    port: Annotated[Port, env("WORKER_PORT")] = 8000
    """Port to listen on; 0 takes a free one."""

    uses_ssl: Annotated[bool, env("USE_SSL")] = False
    """Serve https. Set by Vast."""


class TlsFiles(Section):
    """Certificate and key of the HTTP server."""

    certificate: Annotated[Path, env("SSL_CERTFILE")] = Path("/etc/instance.crt")
    """The certificate for `USE_SSL`; read again when it changes."""

    key: Annotated[Path, env("SSL_KEYFILE")] = Path("/etc/instance.key")
    """Its key."""


class ConnectionLimits(Section):
    """Limits on client connections: their number, and the duration and size of the parts of a request."""

    max_connections: Annotated[PositiveInt, env("MAX_CONNECTIONS")] = 2048
    """Client connections at once, a quarter of them from one address; fewer where few files may be open
    ([connections](security.md#connections-bodies-and-tls))."""

    max_per_address: PositiveInt | None = None
    """Connections from one address; not for this machine and proxies in `FORWARDED_ALLOW_IPS`. None: a quarter of
    all, so that one client cannot keep the others out and a server that sends for many still has room."""

    head_seconds: PositiveSeconds = 30.0
    """Seconds for the head of a request."""

    max_head_bytes: Annotated[int, Field(ge=1024, le=MIB)] = 64 * 1024
    """Largest head of a request."""

    body_idle_seconds: PositiveSeconds = 30.0
    """Seconds that a request's body may pause."""

    body_bytes_per_second: NaturalInt = 1024
    """Lowest rate of a body, in bytes a second; 0: any."""

    keep_alive_seconds: Annotated[PositiveSeconds, env("KEEP_ALIVE_TIMEOUT")] = 5.0
    """Seconds an idle connection is kept after a reply."""

    @property
    def num_per_address(self) -> int:
        """Connections that one address may have."""
        return self.max_per_address or max(1, self.max_connections // 4)


class BodyLimits(Section):
    """Limits on request bodies. An unknown caller has not yet sent a credential; `max_pending_bytes` is for all."""

    max_bytes: Annotated[PositiveInt, env("MAX_REQUEST_BYTES")] = 100 * MIB
    """Largest request body."""

    max_unknown_bytes: PositiveInt = MIB
    """Largest body of a caller whose signature has not been checked yet."""

    max_pending_bytes: PositiveInt = 512 * MIB
    """Sum of the bodies held at once; more get 503."""


class JsonLimits(Section):
    """Limits on the structure of one JSON text. Elements are values and commas as a scan counts them."""

    max_depth: Annotated[int, Field(gt=0, le=500)] = 100
    """Levels of lists and objects in a body."""

    max_elements: PositiveInt = 250_000
    """Values in a body, counted before it is parsed: five for each node of the largest workflow that is allowed by
    default, and some 30 MB of Python objects."""

    max_string_bytes: PositiveInt = 100 * MIB
    """Longest string in a body."""


class FolderSettings(Section):
    """Folders of the front and of its engines."""

    base: Annotated[Path, env("BASE_DIRECTORY", "COMFYUI_INSTALL_PATH")] = Path(".")
    """A ComfyUI base directory: `models/`, `input/`, `output/`, `temp/`; in `modifiers/`
    [modifiers](modifiers.md) of your own. `./run.sh` uses `./base`."""

    state: Annotated[Path | None, env("STATE_DIRECTORY")] = None
    """Jobs, results, keys; on a local disk. Empty: `BASE_DIRECTORY/state`."""

    @property
    def state_path(self) -> Path:
        return (self.state or self.base / "state").absolute()

    @property
    def modifiers_path(self) -> Path:
        return (self.base / "modifiers").absolute()


class LogSettings(Section):
    """Level, format and contents of the log ([logs](observability.md#logs))."""

    level: Annotated[LogLevel | None, BeforeValidator(_read_level), LOWER, env("LOG_LEVEL", "DEBUG")] = None
    """Lowest level that is logged, of the worker and its engines: `debug`, `info`, `warning`, `error` or `critical`.
    Empty: `info`. `DEBUG=true` stands for `debug`."""

    format: Annotated[Literal["auto", "json", "console"], LOWER, env("LOG_FORMAT")] = "auto"
    """`json`, `console`, or `auto`: console on a terminal. Colours are for terminals alone, without `NO_COLOR`."""

    has_access_log: Annotated[bool, env("ACCESS_LOG")] = True
    """Log every HTTP request."""

    has_prompts: Annotated[bool, env("LOG_PROMPTS")] = False
    """`true`: log the prompts of jobs. Otherwise their texts are removed from log records."""

    @property
    def effective_level(self) -> LogLevel:
        """Lowest level that is logged."""
        return self.level or "info"
