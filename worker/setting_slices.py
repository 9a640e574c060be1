"""Slices of the settings for parts of the front: one small frozen slice each, never the whole.

`worker/settings.py` creates them. Sizes are bytes and durations seconds unless the name says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import SecretStr

from worker.identity.api_keys import ApiKey, KeyFile
from worker.priority import DEFAULT_PRIORITY_STEP_SECONDS


@dataclass(frozen=True, slots=True)
class S3Config:
    """Default destination of uploads. Used only when key, secret and bucket are all known.

    With this key a request writes to `bucket_name` and `allowed_buckets`, and reads inputs below `input_prefixes` (each
    ends with a slash); `*` in either means all.
    """

    access_key_id: SecretStr
    secret_access_key: SecretStr
    bucket_name: str
    endpoint_url: str
    region: str
    connect_timeout_seconds: float
    connect_attempts: int
    presign_seconds: int
    key_template: str
    addressing_style: Literal["auto", "path", "virtual"] = "auto"
    allowed_buckets: tuple[str, ...] = ()
    input_prefixes: tuple[str, ...] = ()
    upload_timeout_seconds: float = 3600.0


@dataclass(frozen=True, slots=True)
class WebhookConfig:
    """Webhook of every request that names none; the secret signs for this URL alone. An empty URL sends nothing."""

    url: str
    secret: SecretStr
    timeout_seconds: float


@dataclass(frozen=True, slots=True)
class InputLimits:
    """Limits of one download, and of the pixels in all frames of a picture."""

    max_bytes: int
    timeout_seconds: float
    max_redirects: int
    max_pixels: int = 1 << 27


@dataclass(frozen=True, slots=True)
class BenchmarkConfig:
    """Benchmark to run: `workflow`, else `modifier` with `modifications`, else text-to-image at this size.

    A limit that is None does not apply.
    """

    mode: Literal["auto", "off"]
    width_px: int
    height_px: int
    num_steps: int
    checkpoint: str
    workflow: Path | None
    modifier: str
    modifications: Mapping[str, Any]
    min_its: float | None
    max_seconds: float | None
    history: Path | None
    on_fail: Literal["error", "serve", "exit"]
    ttl_seconds: float


@dataclass(frozen=True, slots=True)
class WarmUpConfig:
    """Warm-up before the worker counts as ready. `models` are names, each with or without its folder before it."""

    models: tuple[str, ...]
    workflows: tuple[Path, ...]
    on_fail: Literal["error", "serve"]


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Authentication of callers.

    With `master_token` set, a request without Vast's envelope needs an API key, loopback, or `is_unsecured`.
    `public_host` is the lower-case host name of the worker, empty where it is not set.
    """

    master_token: SecretStr
    keys: tuple[ApiKey, ...] = ()
    key_files: tuple[KeyFile, ...] = ()
    is_unsecured: bool = False
    trusts_loopback: bool = True
    public_host: str = ""


@dataclass(frozen=True, slots=True)
class VastConfig:
    """Vast's data about this worker. `max_sessions` 0: no limit.

    `max_session_seconds` bounds the life of a session, however often it is used.
    """

    container_id: int | None
    master_token: SecretStr
    report_addresses: tuple[str, ...]
    public_ip: str
    public_port: int | None
    uses_ssl: bool
    is_unsecured: bool
    checks_url: bool
    max_sessions: int
    max_session_seconds: float
    update_file: Path
    host: str
    worker_port: int
    worker_http_port: int

    @property
    def url(self) -> str:
        """URL that is reported and signed."""
        scheme = "https" if self.uses_ssl else "http"
        return f"{scheme}://{self.public_ip or self.host}:{self.public_port or self.worker_port}"

    @property
    def checked_url(self) -> str:
        """URL that a signed one must equal; empty when ours is not known or is not to be compared."""
        return self.url if self.checks_url and self.public_ip and self.public_port else ""


@dataclass(frozen=True, slots=True)
class RunPodConfig:
    """Configuration of RunPod's loop and its access to the front. `has_store`: the environment names an S3 store."""

    front_url: str
    front_certificate: Path | None
    key_file: Path
    num_jobs: int
    is_refreshed: bool
    has_store: bool


@dataclass(frozen=True, slots=True)
class TlsFiles:
    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class QueueLimits:
    """Limits of the queue. `max_wait_seconds` None: no limit on the wait. Floors are bytes of free disk and memory."""

    max_queued: int
    max_wait_seconds: float | None
    min_free_disk_bytes: int
    job_timeout_seconds: float
    sync_grace_seconds: float
    result_ttl_seconds: float
    min_free_memory_bytes: int = 0
    priority_step_seconds: float = DEFAULT_PRIORITY_STEP_SECONDS


@dataclass(frozen=True, slots=True)
class PromptLimits:
    """Limits of a prompt. 0 nodes, links or bytes: no limit; None: no limit."""

    max_nodes: int = 0
    max_links: int = 0
    max_bytes: int = 0
    max_pixels: int | None = None
    max_batch: int | None = None
    max_frames: int | None = None
    max_steps: int | None = None
    max_output_bytes: int | None = None

    @property
    def bounds_work(self) -> bool:
        """True with any limit on the work that a prompt requires of the engine."""
        return any(limit is not None for limit in (self.max_pixels, self.max_batch, self.max_frames, self.max_steps))


@dataclass(frozen=True, slots=True)
class NodePolicyConfig:
    """Patterns of node classes and packs. Empty lists: every node may be used."""

    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()
    allowed_packs: tuple[str, ...] = ()
    denied_packs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CallerLimits:
    """Limits for each API key, or address where there is none. None: no limit.

    `are_for_admins`: they apply to operators' keys and to callers from this machine, too.
    """

    requests_per_second: float | None = None
    jobs_waiting: int | None = None
    jobs_running: int | None = None
    pixel_steps_per_minute: int | None = None
    stored_bytes: int | None = None
    are_for_admins: bool = False


@dataclass(frozen=True, slots=True)
class RetentionConfig:
    """Age and size limits of expired data. Bytes are the sum over all files of a kind."""

    result_ttl_seconds: float
    output_max_bytes: int
    input_max_bytes: int
    dead_webhook_ttl_seconds: float


@dataclass(frozen=True, slots=True)
class OutputConfig:
    base64_max_bytes: int
    link_seconds: int
    public_url: str
    include_engine_response: bool
    metadata: Literal["none", "prompt", "full"]


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """Isolation of the engine's node packs from the rest of the machine. None: no such limit.

    `user` is a name, UID or UID:GID, used where the front is root. `readable` are folders beside the engine's own;
    `hidden` are secrets of the front.
    """

    level: Literal["off", "user", "bwrap"] = "off"
    user: str = ""
    readable: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    max_processes: int | None = None
    max_file_bytes: int | None = None
    max_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class EngineLaunch:
    """Connection to or start of the engine. `urls` empty: start our own as a child process.

    `private_directory` is the front's own, for sockets and the token; None: a temporary one. `environment_names` are
    variables that an engine gets besides those that every engine needs.
    """

    urls: tuple[str, ...]
    arguments: tuple[str, ...]
    base_directory: Path
    precision: Literal["auto", "fp32", "fp16", "bf16"]
    metadata: Literal["none", "prompt", "full"]
    is_cpu: bool
    num_engines: int | None = None  # None: one for each GPU
    max_input_pixels: int = 1 << 27
    private_directory: Path | None = None
    environment_names: tuple[str, ...] = ()
    sandbox: SandboxConfig = SandboxConfig()


@dataclass(frozen=True, slots=True)
class SupervisionConfig:
    """Thresholds at which an engine counts as hung or too large, and the number of restarts.

    `soft_limit_bytes` None: a share of the memory of the machine or the container; 0: no limit.
    """

    stall_seconds: float
    silence_seconds: float
    cancel_grace_seconds: float
    max_restarts: int
    restart_window_seconds: float
    soft_limit_bytes: int | None
    min_free_bytes: int


@dataclass(frozen=True, slots=True)
class JsonLimits:
    """Limits on the structure of one JSON text. Elements are values and commas as a scan counts them."""

    max_depth: int
    max_elements: int
    max_string_bytes: int


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits on request bodies. An unknown caller has not yet sent a credential; `max_pending_bytes` is for all."""

    max_bytes: int
    max_unknown_bytes: int
    max_pending_bytes: int
    json: JsonLimits


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits on client connections: their number, and the duration and size of the parts of a request."""

    max_connections: int
    max_per_address: int
    head_seconds: float
    max_head_bytes: int
    body_idle_seconds: float
    body_bytes_per_second: int
    keep_alive_seconds: float
