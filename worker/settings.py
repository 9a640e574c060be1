"""Settings of the front: the only file that reads the environment (and `.env`).

`load_settings()` returns one frozen `Settings` and the warnings to log. A value that does not parse raises
SettingsInvalid naming the variable. Unknown names are ignored, with a warning for one that resembles ours. Every secret
has a form `NAME_FILE`, the name of a file that holds the value. The rest of the front gets small frozen slices
(`settings.s3_config()` and so on, in `setting_slices.py`), never this object.

Sizes are bytes and durations seconds unless the name says otherwise.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import AliasChoices, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, DotEnvSettingsSource, NoDecode, SettingsConfigDict

from names.nearest import nearest_name
from worker.child_environment import find_pattern_problem, listed_environment
from worker.errors import SettingsInvalid
from worker.identity.api_keys import ApiKey, KeyFile, KeyMalformed, KeyRing, check_distinct, parse_keys
from worker.identity.caller import ALL_SCOPES, CUSTOMER_SCOPES
from worker.identity.loopback import is_loopback
from worker.identity.own_key import own_key_path
from worker.object_keys import find_template_problem
from worker.priority import DEFAULT_PRIORITY_STEP_SECONDS
from worker.setting_slices import (
    AuthConfig,
    BenchmarkConfig,
    BodyLimits,
    CallerLimits,
    ConnectionLimits,
    EngineLaunch,
    InputLimits,
    JsonLimits,
    NodePolicyConfig,
    OutputConfig,
    PromptLimits,
    QueueLimits,
    RetentionConfig,
    RunPodConfig,
    S3Config,
    SandboxConfig,
    SupervisionConfig,
    TlsFiles,
    VastConfig,
    WarmUpConfig,
    WebhookConfig,
)
from worker.workload import Workload

MIB = 1024 * 1024
GIB = 1024 * MIB
RUNPOD_PREFIX = "RUNPOD_"
DEFAULT_REPORT_ADDRESS = "https://run.vast.ai"
MAX_PRESIGN_SECONDS = 604_800  # a week: the longest validity of a signature of version 4

IGNORED_NAMES = frozenset(
    {
        "API_CACHE",
        "REDIS_HOST",
        "REDIS_PORT",
        "REDIS_DB",
        "REDIS_PASSWORD",
        "WEBSOCKET_INITIAL_TIMEOUT",
        "WEBSOCKET_MESSAGE_TIMEOUT",
        "WEBSOCKET_MAX_NO_MESSAGE_RETRIES",
        "WEBSOCKET_MAX_RECONNECTS",
        "GENERATION_WORKERS",
        "BACKEND_FAILURE_THRESHOLD",
    }
)
"""Names that older deployments set and that have no effect: jobs are in SQLite, the engine's history is accurate."""

OTHERS_NAMES = frozenset({"SSL_CERT_FILE"})
"""Names that other programs read and that resemble a misspelled one of ours."""

OUR_PREFIXES = (
    "ADMIN_API_",
    "API_KEY",
    "BENCHMARK_",
    "DARKROOM_",
    "ENGINE_",
    "INPUT_",
    "MASTER_TOKEN",
    "METRICS_",
    "OUTPUT_",
    "S3_",
    "TRUST_LOOPBACK",
    "WARMUP_",
    "WEBHOOK_",
    "WORKER_",
)
"""Prefixes of names that are most likely meant for us."""

SERVICE_NAME = re.compile(r"_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_(TCP|UDP)(_\w+)?)?)$")
"""Pattern of Kubernetes' variables for each service of a namespace, one called `engine` or `worker` too."""

CommaList = Annotated[tuple[str, ...], NoDecode]
PositiveInt = Annotated[int, Field(gt=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]


class Settings(BaseSettings):
    """Settings with one attribute per variable, named like it in lower case. The README's table describes each."""

    model_config = SettingsConfigDict(
        frozen=True, extra="ignore", env_ignore_empty=True, case_sensitive=False, hide_input_in_errors=True
    )

    # addresses and folders
    worker_host: str = "127.0.0.1"
    worker_port: Annotated[int, Field(ge=0, le=65535)] = 8000
    worker_http_port: Annotated[int, Field(ge=0, le=65535)] | None = None
    public_url: str = ""
    max_connections: PositiveInt = 2048
    max_connections_per_address: PositiveInt = 512
    head_timeout: PositiveSeconds = 30.0
    max_head_bytes: Annotated[int, Field(ge=1024, le=MIB)] = 64 * 1024
    body_timeout: PositiveSeconds = 30.0
    body_min_rate: Annotated[int, Field(ge=0)] = 1024
    keep_alive_timeout: PositiveSeconds = 5.0
    hsts_seconds: Annotated[int, Field(ge=0)] = 86400
    base_directory: Annotated[Path, Field(validation_alias=AliasChoices("BASE_DIRECTORY", "COMFYUI_INSTALL_PATH"))] = (
        Path(".")
    )
    state_directory: Path | None = None
    modifiers_directory: Path | None = None

    # the engine
    engine_url: Annotated[
        CommaList, Field(validation_alias=AliasChoices("ENGINE_URL", "COMFYUI_BACKENDS", "COMFYUI_API_BASE"))
    ] = ()
    engine_args: Annotated[tuple[str, ...], NoDecode] = ()
    engine_environment: CommaList = ()
    engine_sandbox: Literal["off", "user", "bwrap"] = "off"
    engine_user: str = "10002"
    engine_sandbox_paths: CommaList = ()
    engine_max_processes: Annotated[int, Field(ge=64)] = 2048
    engine_max_file_bytes: Annotated[int, Field(ge=MIB)] = 16 * GIB
    engine_max_memory_bytes: Annotated[int, Field(ge=256 * MIB)] | None = None
    precision: Literal["auto", "fp32", "fp16", "bf16"] = "auto"
    cpu: bool = False
    engines: Annotated[int, Field(gt=0, le=64)] | Literal["auto"] = "auto"
    stall_timeout: PositiveSeconds = 600.0
    heartbeat_timeout: PositiveSeconds = 120.0
    cancel_grace_seconds: PositiveSeconds = 15.0
    engine_max_restarts: Annotated[int, Field(ge=0)] = 10
    engine_restart_window: PositiveSeconds = 600.0
    memory_soft_limit_bytes: Annotated[int, Field(ge=0)] | None = None

    # jobs
    max_queue_size: PositiveInt = 100
    max_queue_time: PositiveSeconds | None = None
    priority_step_seconds: Annotated[float, Field(ge=0, le=1e7)] = DEFAULT_PRIORITY_STEP_SECONDS
    max_request_bytes: PositiveInt = 100 * MIB
    max_unknown_request_bytes: PositiveInt = MIB
    max_pending_body_bytes: PositiveInt = 512 * MIB
    max_json_depth: Annotated[int, Field(gt=0, le=500)] = 100
    max_json_elements: PositiveInt = 250_000
    max_json_string_bytes: PositiveInt = 100 * MIB
    job_timeout: PositiveSeconds = 3600.0
    sync_grace_seconds: Annotated[float, Field(ge=0)] = 30.0
    drain_timeout: Annotated[float, Field(ge=0)] = 30.0
    result_ttl: Annotated[PositiveSeconds, Field(validation_alias=AliasChoices("RESULT_TTL", "API_CACHE_TTL"))] = (
        21600.0
    )
    min_free_disk_bytes: Annotated[int, Field(ge=0)] = 256 * MIB
    min_free_memory_bytes: Annotated[int, Field(ge=0)] = 256 * MIB
    preprocess_workers: PositiveInt = 8
    postprocess_workers: PositiveInt = 8

    # limits of prompts
    prompt_max_nodes: Annotated[int, Field(ge=0)] = 50_000
    prompt_max_links: Annotated[int, Field(ge=0)] = 250_000
    prompt_max_bytes: Annotated[int, Field(ge=0)] = 64 * MIB
    prompt_max_pixels: PositiveInt | None = None
    prompt_max_batch: PositiveInt | None = None
    prompt_max_frames: PositiveInt | None = None
    prompt_max_steps: PositiveInt | None = None
    prompt_max_output_bytes: PositiveInt | None = None
    allowed_nodes: CommaList = ()
    denied_nodes: CommaList = ()
    allowed_node_packs: CommaList = ()
    denied_node_packs: CommaList = ()

    # limits of one caller
    caller_max_requests_per_second: Annotated[float, Field(gt=0, le=100_000, allow_inf_nan=False)] | None = None
    caller_max_jobs_waiting: PositiveInt | None = None
    caller_max_jobs_running: PositiveInt | None = None
    caller_max_pixel_steps_per_minute: PositiveInt | None = None
    caller_max_stored_bytes: PositiveInt | None = None
    caller_limits_for_admins: bool = False

    # inputs
    input_max_bytes: PositiveInt = 100 * MIB
    input_timeout: PositiveSeconds = 60.0
    input_max_redirects: Annotated[int, Field(ge=0)] = 5
    input_max_pixels: PositiveInt = 1 << 27
    shared_files: bool = False
    input_cache_max_bytes: Annotated[int, Field(ge=0)] = 5 * GIB
    allowed_private_hosts: CommaList = ()

    # outputs
    s3_access_key_id: SecretStr = SecretStr("")
    s3_secret_access_key: SecretStr = SecretStr("")
    s3_bucket_name: str = ""
    s3_endpoint_url: str = ""
    s3_region: str = ""
    s3_connect_timeout: PositiveSeconds = 60.0
    s3_connect_attempts: PositiveInt = 3
    s3_presign_seconds: Annotated[int, Field(gt=0, le=MAX_PRESIGN_SECONDS)] = MAX_PRESIGN_SECONDS
    s3_key_template: str = "{request_id}/{filename}"
    s3_addressing_style: Literal["auto", "path", "virtual"] = "auto"
    s3_allowed_buckets: CommaList = ()
    s3_input_prefixes: CommaList = ()
    s3_upload_timeout: PositiveSeconds = 3600.0
    webhook_url: str = ""
    webhook_secret: SecretStr = SecretStr("")
    webhook_timeout: PositiveSeconds = 30.0
    webhook_dead_ttl: PositiveSeconds = 604800.0
    output_base64_max_bytes: PositiveInt = 10485760
    output_link_seconds: PositiveInt = 86400
    output_max_bytes: PositiveInt = 20 * GIB
    keep_engine_output: bool = True
    include_comfyui_response: bool = False
    metadata: Literal["none", "prompt", "full"] = "none"

    # the start-up benchmark
    benchmark: Literal["auto", "off"] = "auto"
    benchmark_test_width: Annotated[int, Field(ge=64, le=16384, multiple_of=8)] = 512
    benchmark_test_height: Annotated[int, Field(ge=64, le=16384, multiple_of=8)] = 512
    benchmark_test_steps: Annotated[int, Field(ge=1, le=10000)] = 20
    benchmark_checkpoint: str = ""
    benchmark_workflow: Annotated[
        Path | None, Field(validation_alias=AliasChoices("BENCHMARK_WORKFLOW", "BENCHMARK_JSON_PATH"))
    ] = None
    benchmark_modifier: str = ""
    benchmark_modifications: str = ""
    benchmark_min_its: PositiveSeconds | None = None
    benchmark_max_seconds: PositiveSeconds | None = None
    benchmark_history: Path | None = None
    benchmark_on_fail: Literal["error", "serve", "exit"] = "error"
    benchmark_ttl: Annotated[float, Field(ge=0)] = 86400.0
    preload_models: CommaList = ()
    warmup_workflows: CommaList = ()
    warmup_on_fail: Literal["error", "serve"] = "serve"

    # access control, and the platform
    autoscaler: Literal["auto", "vast", "runpod", "plain"] = "auto"
    workload: Workload = Workload.COMPUTED
    assumed_speed: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 20.0
    unsecured: bool = False
    trust_loopback: bool | None = None
    api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = ()
    api_keys_file: Path | None = None
    admin_api_keys: Annotated[tuple[SecretStr, ...], NoDecode] = ()
    admin_api_keys_file: Path | None = None
    metrics_open: bool = True
    master_token: SecretStr = SecretStr("")
    container_id: int | None = None
    report_addr: CommaList = ()
    public_ipaddr: str = ""
    use_ssl: bool = False
    ssl_certfile: Path = Path("/etc/instance.crt")
    ssl_keyfile: Path = Path("/etc/instance.key")
    vast_check_url: bool = True
    max_sessions: Annotated[int, Field(ge=0)] = 10
    max_session_seconds: Annotated[PositiveSeconds, Field(allow_inf_nan=False)] = 86400.0
    pyworker_update_file: Path = Path("/.force_update")
    runpod_webhook_get_job: SecretStr = SecretStr("")
    runpod_concurrency: PositiveInt = 1
    refresh_worker: bool = False
    model_health_endpoint: str = ""

    # the log
    debug: bool = False
    log_format: Literal["auto", "json", "console"] = "auto"

    # filled by load_settings from VAST_TCP_PORT_<WORKER_PORT>, whose name is not fixed
    vast_tcp_port: int | None = None

    @field_validator(
        "engine_url",
        "engine_environment",
        "engine_sandbox_paths",
        "allowed_private_hosts",
        "s3_allowed_buckets",
        "s3_input_prefixes",
        "report_addr",
        "api_keys",
        "admin_api_keys",
        "preload_models",
        "warmup_workflows",
        "allowed_nodes",
        "denied_nodes",
        "allowed_node_packs",
        "denied_node_packs",
        mode="before",
    )
    @classmethod
    def _split_commas(cls, value: Any) -> Any:
        if isinstance(value, str):
            return tuple(part.strip() for part in value.split(",") if part.strip())
        return value

    @field_validator("engine_args", mode="before")
    @classmethod
    def _split_shell_words(cls, value: Any) -> Any:
        return tuple(shlex.split(value)) if isinstance(value, str) else value

    @field_validator("engine_environment")
    @classmethod
    def _are_names(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        problems = [problem for name in value if (problem := find_pattern_problem(name, _private_names()))]
        if problems:
            raise ValueError("; ".join(problems))
        return value

    @field_validator("s3_key_template")
    @classmethod
    def _makes_keys(cls, value: str) -> str:
        problem = find_template_problem(value)
        if problem:
            raise ValueError(problem)
        return value

    @field_validator(
        "precision",
        "benchmark",
        "benchmark_on_fail",
        "warmup_on_fail",
        "metadata",
        "log_format",
        "s3_addressing_style",
        "autoscaler",
        "workload",
        "engines",
        "engine_sandbox",
        mode="before",
    )
    @classmethod
    def _lower(cls, value: Any) -> Any:
        return value.strip().lower() if isinstance(value, str) else value

    @field_validator("benchmark_modifications")
    @classmethod
    def _is_json_object(cls, value: str) -> str:
        try:
            parsed = json.loads(value or "{}")
        except ValueError as error:
            raise ValueError(f"is not JSON: {error}") from None
        if not isinstance(parsed, dict):
            raise ValueError('is not a JSON object, as in {"steps": 30}')
        return value

    @field_validator("public_url", "s3_endpoint_url", "webhook_url")
    @classmethod
    def _is_address(cls, value: str) -> str:
        if value and not re.match(r"https?://[^/?#\s]", value, re.IGNORECASE):
            raise ValueError("is not an http:// or https:// address")
        return value

    @field_validator("engine_url", "report_addr")
    @classmethod
    def _has_scheme(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"{url!r} is not an http:// or https:// address")
        return tuple(url.rstrip("/") for url in value)

    @model_validator(mode="after")
    def _platform_is_known(self) -> Settings:
        if self.autoscaler == "vast" and not (self.master_token.get_secret_value() and self.container_id is not None):
            raise ValueError("AUTOSCALER: vast needs MASTER_TOKEN and CONTAINER_ID")
        if self.autoscaler == "runpod" and not self.runpod_webhook_get_job.get_secret_value():
            raise ValueError("AUTOSCALER: runpod needs RUNPOD_WEBHOOK_GET_JOB")
        return self

    @model_validator(mode="after")
    def _keys_are_well_formed(self) -> Settings:
        for name, given, file in (
            ("API_KEYS", self.api_keys, self.api_keys_file),
            ("ADMIN_API_KEYS", self.admin_api_keys, self.admin_api_keys_file),
        ):
            if given and file is not None:
                raise ValueError(f"{name}: set beside {name}_FILE; got both, expected one of them")
            try:
                parse_keys(key.get_secret_value() for key in given)
            except KeyMalformed as error:
                raise ValueError(f"{name}: {error}") from None
        try:
            check_distinct(self.keys)
        except KeyMalformed as error:
            raise ValueError(f"API_KEYS and ADMIN_API_KEYS: {error}") from None
        return self

    @model_validator(mode="after")
    def _sandbox_has_no_port(self) -> Settings:
        flags = {flag.partition("=")[0] for flag in self.engine_args}
        if self.engine_sandbox == "bwrap" and flags & {"--port", "--listen"}:
            raise ValueError(
                "ENGINE_ARGS: --port and --listen have no use in ENGINE_SANDBOX=bwrap, which has no network"
            )
        return self

    @property
    def platform(self) -> Literal["vast", "runpod", "plain"]:
        """Autoscaler that is configured; `auto` depends on the variables that the platforms set."""
        if self.autoscaler != "auto":
            return self.autoscaler
        if self.runpod_webhook_get_job.get_secret_value():
            return "runpod"
        return "vast" if self.master_token.get_secret_value() and self.container_id is not None else "plain"

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """Return the keys that are not in a file."""
        customers = parse_keys(key.get_secret_value() for key in self.api_keys)
        return customers + parse_keys((key.get_secret_value() for key in self.admin_api_keys), ALL_SCOPES)

    @property
    def key_files(self) -> tuple[KeyFile, ...]:
        files = (
            ("API_KEYS_FILE", self.api_keys_file, CUSTOMER_SCOPES),
            ("ADMIN_API_KEYS_FILE", self.admin_api_keys_file, ALL_SCOPES),
        )
        return tuple(KeyFile(name, path, scopes) for name, path, scopes in files if path is not None)

    @property
    def has_api_keys(self) -> bool:
        return bool(self.api_keys or self.admin_api_keys or self.key_files)

    @property
    def asks_for_keys(self) -> bool:
        return (self.has_api_keys or bool(self.master_token.get_secret_value())) and not self.unsecured

    @property
    def trusts_loopback(self) -> bool:
        """True if this machine needs no key. With keys set it needs one: a proxy may pass requests on unmarked."""
        return not self.has_api_keys if self.trust_loopback is None else self.trust_loopback

    @property
    def is_under_vast(self) -> bool:
        return self.platform == "vast"

    @property
    def listen_host(self) -> str:
        """`worker_host`; by default all interfaces under Vast, for its port map.

        Under RunPod jobs come by its loop alone: without keys the port is open to this machine only.
        """
        if self.platform == "runpod" and not self.asks_for_keys and not self.unsecured:
            return self.worker_host if _is_of_this_machine(self.worker_host) else "127.0.0.1"
        return "0.0.0.0" if self.is_under_vast and "worker_host" not in self.model_fields_set else self.worker_host

    @property
    def local_url(self) -> str:
        """URL of the worker from its own machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.listen_host, self.listen_host)
        return f"{'https' if self.use_ssl else 'http'}://{f'[{host}]' if ':' in host else host}:{self.worker_port}"

    def state_path(self) -> Path:
        return (self.state_directory or self.base_directory / "state").absolute()

    @property
    def own_key_path(self) -> Path:
        """File in which the running front keeps the key of its own commands."""
        return own_key_path(self.state_path())

    def modifiers_path(self) -> Path:
        return (self.modifiers_directory or self.base_directory / "modifiers").absolute()

    def s3_config(self) -> S3Config:
        return S3Config(
            access_key_id=self.s3_access_key_id,
            secret_access_key=self.s3_secret_access_key,
            bucket_name=self.s3_bucket_name,
            endpoint_url=self.s3_endpoint_url,
            region=self.s3_region,
            connect_timeout_seconds=self.s3_connect_timeout,
            connect_attempts=self.s3_connect_attempts,
            presign_seconds=self.s3_presign_seconds,
            key_template=self.s3_key_template,
            addressing_style=self.s3_addressing_style,
            allowed_buckets=self.s3_allowed_buckets,
            input_prefixes=tuple(_folder_prefix(prefix) for prefix in self.s3_input_prefixes),
            upload_timeout_seconds=self.s3_upload_timeout,
        )

    def webhook_config(self) -> WebhookConfig:
        return WebhookConfig(self.webhook_url, self.webhook_secret, self.webhook_timeout)

    def prompt_limits(self) -> PromptLimits:
        return PromptLimits(
            max_nodes=self.prompt_max_nodes,
            max_links=self.prompt_max_links,
            max_bytes=self.prompt_max_bytes,
            max_pixels=self.prompt_max_pixels,
            max_batch=self.prompt_max_batch,
            max_frames=self.prompt_max_frames,
            max_steps=self.prompt_max_steps,
            max_output_bytes=self.prompt_max_output_bytes,
        )

    def node_policy_config(self) -> NodePolicyConfig:
        return NodePolicyConfig(self.allowed_nodes, self.denied_nodes, self.allowed_node_packs, self.denied_node_packs)

    def caller_limits(self) -> CallerLimits:
        return CallerLimits(
            requests_per_second=self.caller_max_requests_per_second,
            jobs_waiting=self.caller_max_jobs_waiting,
            jobs_running=self.caller_max_jobs_running,
            pixel_steps_per_minute=self.caller_max_pixel_steps_per_minute,
            stored_bytes=self.caller_max_stored_bytes,
            are_for_admins=self.caller_limits_for_admins,
        )

    def body_limits(self) -> BodyLimits:
        structure = JsonLimits(self.max_json_depth, self.max_json_elements, self.max_json_string_bytes)
        return BodyLimits(
            self.max_request_bytes, self.max_unknown_request_bytes, self.max_pending_body_bytes, structure
        )

    def connection_limits(self) -> ConnectionLimits:
        return ConnectionLimits(
            max_connections=self.max_connections,
            max_per_address=self.max_connections_per_address,
            head_seconds=self.head_timeout,
            max_head_bytes=self.max_head_bytes,
            body_idle_seconds=self.body_timeout,
            body_bytes_per_second=self.body_min_rate,
            keep_alive_seconds=self.keep_alive_timeout,
        )

    def input_limits(self) -> InputLimits:
        return InputLimits(self.input_max_bytes, self.input_timeout, self.input_max_redirects, self.input_max_pixels)

    def benchmark_config(self) -> BenchmarkConfig:
        return BenchmarkConfig(
            self.benchmark,
            self.benchmark_test_width,
            self.benchmark_test_height,
            self.benchmark_test_steps,
            self.benchmark_checkpoint,
            workflow=self.benchmark_workflow,
            modifier=self.benchmark_modifier,
            modifications=json.loads(self.benchmark_modifications or "{}"),
            min_its=self.benchmark_min_its,
            max_seconds=self.benchmark_max_seconds,
            history=self.benchmark_history,
            on_fail=self.benchmark_on_fail,
            ttl_seconds=self.benchmark_ttl,
        )

    def warm_up_config(self) -> WarmUpConfig:
        return WarmUpConfig(self.preload_models, tuple(map(Path, self.warmup_workflows)), self.warmup_on_fail)

    def auth_config(self) -> AuthConfig:
        return AuthConfig(
            master_token=self.master_token,
            keys=self.keys,
            key_files=self.key_files,
            is_unsecured=self.unsecured,
            trusts_loopback=self.trusts_loopback,
            public_host=(urlsplit(self.public_url).hostname or "") if self.public_url else "",
        )

    def vast_config(self) -> VastConfig:
        return VastConfig(
            container_id=self.container_id,
            master_token=self.master_token,
            report_addresses=self.report_addr or (DEFAULT_REPORT_ADDRESS,),
            public_ip=self.public_ipaddr,
            public_port=self.vast_tcp_port,
            uses_ssl=self.use_ssl,
            is_unsecured=self.unsecured,
            checks_url=self.vast_check_url,
            max_sessions=self.max_sessions,
            max_session_seconds=self.max_session_seconds,
            update_file=self.pyworker_update_file,
            host=self.listen_host,
            worker_port=self.worker_port,
            worker_http_port=self.worker_port + 1 if self.worker_http_port is None else self.worker_http_port,
        )

    def runpod_config(self) -> RunPodConfig:
        tls = self.tls_files()
        has_store = all(
            (
                self.s3_access_key_id.get_secret_value(),
                self.s3_secret_access_key.get_secret_value(),
                self.s3_bucket_name,
            )
        )
        return RunPodConfig(
            front_url=self.local_url,
            front_certificate=None if tls is None else tls.certificate,
            key_file=self.own_key_path,
            num_jobs=self.runpod_concurrency,
            is_refreshed=self.refresh_worker,
            has_store=has_store,
        )

    def tls_files(self) -> TlsFiles | None:
        return TlsFiles(self.ssl_certfile, self.ssl_keyfile) if self.use_ssl else None

    def queue_limits(self) -> QueueLimits:
        default_wait = 10.0 if self.is_under_vast else None
        return QueueLimits(
            max_queued=self.max_queue_size,
            max_wait_seconds=self.max_queue_time if self.max_queue_time is not None else default_wait,
            min_free_disk_bytes=self.min_free_disk_bytes,
            min_free_memory_bytes=self.min_free_memory_bytes,
            job_timeout_seconds=self.job_timeout,
            sync_grace_seconds=self.sync_grace_seconds,
            result_ttl_seconds=self.result_ttl,
            priority_step_seconds=self.priority_step_seconds,
        )

    def retention_config(self) -> RetentionConfig:
        return RetentionConfig(
            result_ttl_seconds=self.result_ttl,
            output_max_bytes=self.output_max_bytes,
            input_max_bytes=self.input_cache_max_bytes,
            dead_webhook_ttl_seconds=self.webhook_dead_ttl,
        )

    def output_config(self) -> OutputConfig:
        return OutputConfig(
            base64_max_bytes=self.output_base64_max_bytes,
            link_seconds=self.output_link_seconds,
            public_url=self.public_url.rstrip("/"),
            include_engine_response=self.include_comfyui_response,
            metadata=self.metadata,
        )

    def engine_launch(self) -> EngineLaunch:
        return EngineLaunch(
            urls=self.engine_url,
            arguments=(*self._engine_limits(), *self.engine_args),
            base_directory=self.base_directory.absolute(),
            precision=self.precision,
            metadata=self.metadata,
            is_cpu=self.cpu,
            num_engines=None if self.engines == "auto" else self.engines,
            max_input_pixels=self.input_max_pixels,
            private_directory=self.state_path() / "engine",
            environment_names=self.engine_environment,
            sandbox=self._sandbox_config(),
        )

    def _engine_limits(self) -> tuple[str, ...]:
        """Return flags that give our engine the front's limits where they differ from the engine's defaults."""
        names = ("prompt_max_nodes", "prompt_max_links", "prompt_max_bytes")
        changed = [name for name in names if getattr(self, name) != type(self).model_fields[name].default]
        return tuple(word for name in changed for word in (_engine_flag(name), str(getattr(self, name))))

    def _sandbox_config(self) -> SandboxConfig:
        key_files = (path.absolute() for path in (self.api_keys_file, self.admin_api_keys_file) if path is not None)
        secrets = (self.state_path(), Path(".env").absolute(), self.ssl_keyfile.absolute(), *key_files)
        return SandboxConfig(
            level=self.engine_sandbox,
            user=self.engine_user,
            readable=tuple(Path(path).absolute() for path in self.engine_sandbox_paths),
            hidden=secrets,
            max_processes=self.engine_max_processes,
            max_file_bytes=self.engine_max_file_bytes,
            max_memory_bytes=self.engine_max_memory_bytes,
        )

    @property
    def keeps_engine_output(self) -> bool:
        """True if an engine keeps files of earlier jobs: `keep_engine_output`; by default not when it is sandboxed."""
        if self.engine_sandbox != "off" and "keep_engine_output" not in self.model_fields_set:
            return False
        return self.keep_engine_output

    def supervision_config(self) -> SupervisionConfig:
        return SupervisionConfig(
            stall_seconds=self.stall_timeout,
            silence_seconds=self.heartbeat_timeout,
            cancel_grace_seconds=self.cancel_grace_seconds,
            max_restarts=self.engine_max_restarts,
            restart_window_seconds=self.engine_restart_window,
            soft_limit_bytes=self.memory_soft_limit_bytes,
            min_free_bytes=self.min_free_memory_bytes,
        )


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    settings: Settings
    warnings: tuple[str, ...]


def load_settings(env_file: Path | None = Path(".env"), **overrides: Any) -> LoadedSettings:
    """Read the environment and `env_file` (if it is there); `overrides` (by attribute name) take precedence over both.

    Raises SettingsInvalid naming every variable whose value does not parse, and a secret that is given twice.
    """
    seen = _names_and_values(env_file)
    worker_port = str(
        overrides.get("worker_port") or seen.get("WORKER_PORT") or Settings.model_fields["worker_port"].default
    )
    mapped_port = seen.get(f"VAST_TCP_PORT_{worker_port}")
    if mapped_port:
        overrides.setdefault("vast_tcp_port", mapped_port)
    named = {_variable_name(key): value for key, value in (read_secret_files(seen) | overrides).items()}
    try:
        settings = Settings(_env_file=env_file, **named)  # type: ignore[call-arg]  # pydantic-settings' own argument
    except ValidationError as error:
        raise SettingsInvalid(_explain(error)) from None
    return LoadedSettings(
        settings,
        tuple(
            find_name_problems(seen)
            + find_open_doors(settings)
            + find_half_a_store(settings)
            + find_idle_sandbox(settings)
        ),
    )


def trusted_proxies() -> tuple[str, ...]:
    """Return the addresses and networks that the HTTP server trusts as proxies, from FORWARDED_ALLOW_IPS."""
    return tuple(part.strip() for part in os.environ.get("FORWARDED_ALLOW_IPS", "").split(",") if part.strip())


def child_environment(extra: Sequence[str] | None = None, *, has_proxy_passwords: bool = False) -> dict[str, str]:
    """Return the environment for a child process: the listed names of ours, and no setting of the front.

    `extra` are the names of ENGINE_ENVIRONMENT; None reads that variable.
    """
    if extra is None:
        extra = [part.strip() for part in os.environ.get("ENGINE_ENVIRONMENT", "").split(",") if part.strip()]
    return listed_environment(os.environ, extra, _private_names(), has_proxy_passwords=has_proxy_passwords)


def _private_names() -> frozenset[str]:
    """Return the names that no child gets: every setting of the front. RunPod's variables hold addresses with keys."""
    of_runpod = {name.upper() for name in os.environ if name.upper().startswith(RUNPOD_PREFIX)}
    ours = known_names() | IGNORED_NAMES
    return frozenset(ours | {f"{name}_FILE" for name in ours} | of_runpod) - OTHERS_NAMES


def runpod_environment() -> dict[str, str]:
    """Return the environment for RunPod's loop. By default the package logs addresses with keys, and outputs."""
    level = os.environ.get("RUNPOD_LOG_LEVEL", "").upper()
    of_runpod = {name: value for name, value in os.environ.items() if name.upper().startswith(RUNPOD_PREFIX)}
    quiet = level if level in ("INFO", "WARN", "ERROR") else "INFO"
    return {**child_environment((), has_proxy_passwords=True), **of_runpod, "RUNPOD_LOG_LEVEL": quiet}


def inherited_environment(changes: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for another worker: ours with all its settings, some of them replaced by these."""
    return {**os.environ, **changes}


def secret_attributes() -> tuple[str, ...]:
    """Return the fields of Settings that hold a secret or several."""
    return tuple(
        name
        for name, field in Settings.model_fields.items()
        if field.annotation is SecretStr or SecretStr in get_args(field.annotation)
    )


def read_secret_files(names: Mapping[str, str]) -> dict[str, str]:
    """Return the values of the secrets whose `NAME_FILE` is set, by attribute; files of keys are read elsewhere.

    Raises SettingsInvalid for a file that cannot be read or holds nothing, and where NAME is set as well.
    """
    values, problems = {}, []
    for attribute in secret_attributes():
        if f"{attribute}_file" in Settings.model_fields:
            continue
        try:
            value = _read_secret_file(attribute.upper(), names)
        except SettingsInvalid as error:
            problems.append(error.message)
            continue
        if value is not None:
            values[attribute] = value
    if problems:
        raise SettingsInvalid("; ".join(problems))
    return values


def hub_token() -> str | None:
    """Return the token in HF_TOKEN_FILE; None leaves it to the hub library's own variables. Raises SettingsInvalid."""
    return _read_secret_file("HF_TOKEN", os.environ)


def _read_secret_file(name: str, names: Mapping[str, str]) -> str | None:
    file = names.get(f"{name}_FILE", "")
    if not file:
        return None
    if names.get(name):
        raise SettingsInvalid(f"{name}: set beside {name}_FILE; got both, expected one of them")
    try:
        value = Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise SettingsInvalid(f"{name}_FILE: {file} cannot be read: {reason}") from None
    if not value:
        raise SettingsInvalid(f"{name}_FILE: {file} is empty; expected the value of {name}")
    return value


def known_names() -> frozenset[str]:
    """Return every variable that a field of Settings reads, in upper case, and the `_FILE` form of every secret."""
    names: set[str] = set()
    for attribute, field in Settings.model_fields.items():
        alias = field.validation_alias
        if isinstance(alias, AliasChoices):
            names.update(str(choice).upper() for choice in alias.choices)
        else:
            names.add(attribute.upper())
    return frozenset(names | {f"{attribute.upper()}_FILE" for attribute in secret_attributes()})


def find_name_problems(names: Mapping[str, str]) -> list[str]:
    """Return warnings for names that are accepted without effect, and for unknown ones that resemble ours."""
    ours = known_names() | IGNORED_NAMES
    known = ours | OTHERS_NAMES
    warnings = [f"{name} is set and has no effect here" for name in sorted(names) if name in IGNORED_NAMES]
    for name in sorted(names):
        if name in known or name.startswith(("VAST_TCP_PORT_", RUNPOD_PREFIX)):
            continue
        close = nearest_name(name, sorted(ours), cutoff=0.87)
        if close is not None:
            warnings.append(f"{name} is not a setting; did you mean {close}?")
        elif name.startswith(OUR_PREFIXES) and not SERVICE_NAME.search(name):
            warnings.append(f"{name} is not a setting and has no effect here")
    return warnings


def check_may_listen(settings: Settings) -> None:
    """Refuse a worker that would accept everybody's jobs without explicit consent, and unusable files of keys.

    Raises SettingsInvalid.
    """
    KeyRing(settings.keys, settings.key_files)
    if settings.asks_for_keys or settings.unsecured or _is_of_this_machine(settings.listen_host):
        return
    raise SettingsInvalid(
        f"WORKER_HOST: open to everyone who reaches the port; got {settings.listen_host} without any key, expected "
        "API_KEYS, API_KEYS_FILE, ADMIN_API_KEYS or MASTER_TOKEN to be set (`darkroom keys new NAME` makes a key), or "
        "WORKER_HOST=127.0.0.1, or UNSECURED=true where everyone is meant to use the worker"
    )


def find_open_doors(settings: Settings) -> list[str]:
    """Return warnings for a platform's variables that are set in part."""
    warnings = []
    if settings.listen_host != settings.worker_host and settings.platform == "runpod":
        warnings.append(
            f"WORKER_HOST is {settings.worker_host} without any key: the port is open to this machine alone, and "
            "RunPod's jobs come all the same"
        )
    if settings.asks_for_keys or settings.unsecured:
        return warnings
    if settings.container_id is not None:
        warnings.append(
            "CONTAINER_ID is set without MASTER_TOKEN and API_KEYS: nothing is reported to Vast, and the signatures of "
            "its envelopes are not checked"
        )
    return warnings


def find_half_a_store(settings: Settings) -> list[str]:
    """Return a warning where S3 is configured in part, since nothing is uploaded then."""
    given = {
        "S3_ACCESS_KEY_ID": settings.s3_access_key_id.get_secret_value(),
        "S3_SECRET_ACCESS_KEY": settings.s3_secret_access_key.get_secret_value(),
        "S3_BUCKET_NAME": settings.s3_bucket_name,
    }
    missing = [name for name, value in given.items() if not value]
    if len(missing) in (0, len(given)):
        return []
    return [f"{' and '.join(missing)} not set: only outputs of requests that bring what is missing are uploaded"]


def _folder_prefix(prefix: str) -> str:
    """Return a key prefix that ends with a slash, so that `in` does not open `internal/`; `*` stays."""
    return prefix if prefix == "*" else prefix.strip("/") + "/"


def _is_of_this_machine(host: str) -> bool:
    return is_loopback(host) or host.lower() == "localhost"


def find_idle_sandbox(settings: Settings) -> list[str]:
    """Return a warning where a sandbox is requested and the engine is not ours to sandbox."""
    if settings.engine_sandbox == "off" or not settings.engine_url:
        return []
    return ["ENGINE_SANDBOX has no effect on the engines of ENGINE_URL"]


def _names_and_values(env_file: Path | None) -> dict[str, str]:
    seen: dict[str, str] = {}
    if env_file is not None and env_file.is_file():
        source = DotEnvSettingsSource(Settings, env_file=env_file)
        seen.update({name.upper(): value for name, value in source.env_vars.items() if value is not None})
    seen.update({name.upper(): value for name, value in os.environ.items()})
    return seen


def _engine_flag(attribute: str) -> str:
    """Return the engine's flag of an attribute: `--max-prompt-nodes` for `prompt_max_nodes`."""
    return f"--max-prompt-{attribute.removeprefix('prompt_max_')}"


def _variable_name(attribute: str) -> str:
    """Return the name of an attribute in the constructor of Settings."""
    alias = Settings.model_fields[attribute].validation_alias
    return str(alias.choices[0]) if isinstance(alias, AliasChoices) else attribute


def _explain(error: ValidationError) -> str:
    lines = []
    for problem in error.errors(include_input=False, include_url=False):
        message = problem["msg"].removeprefix("Value error, ")
        lines.append(f"{str(problem['loc'][0]).upper()}: {problem['msg']}" if problem["loc"] else message)
    return "; ".join(lines)
