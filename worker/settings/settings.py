"""Settings of the front: its sections, the rules between them, and configurations derived from several of them.

The rest of the front receives a section or a derived configuration, never this object. Sizes are bytes and durations
seconds unless the name says otherwise.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import SecretStr, model_validator
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from darkroom.worker.settings.access import AccessSettings, AuthConfig
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.settings.database import DatabaseConfig
from darkroom.worker.settings.engines import EngineLaunch, EngineSettings, SandboxConfig, SupervisionConfig
from darkroom.worker.settings.fallback import FallbackSettings
from darkroom.worker.settings.gateway import GatewayConfig
from darkroom.worker.settings.jobs import (
    CallerLimits,
    CheckpointSettings,
    NodePolicyConfig,
    PipelineSettings,
    PromptLimits,
    QueueLimits,
    RetentionConfig,
)
from darkroom.worker.settings.listener import (
    BodyLimits,
    ConnectionLimits,
    FolderSettings,
    JsonLimits,
    ListenerSettings,
    LogSettings,
    TlsFiles,
)
from darkroom.worker.settings.loopback import is_loopback
from darkroom.worker.settings.models import ModelSettings
from darkroom.worker.settings.outputs import InputLimits, NetworkSettings, OutputConfig, S3Config, WebhookConfig
from darkroom.worker.settings.platforms import (
    AutoscalerSettings,
    PlatformName,
    RunPodConfig,
    RunPodSettings,
    VastConfig,
    VastSettings,
)
from darkroom.worker.settings.qualification import BenchmarkConfig, WarmUpConfig
from darkroom.worker.settings.section import by_section, variables_of
from darkroom.worker.settings.tracing import TracingConfig

VAST_MAX_WAIT_SECONDS = 10.0


class EnvironmentSource(EnvSettingsSource):
    """Source of the sections' values in the environment."""

    def __call__(self) -> dict[str, Any]:
        return by_section(self.settings_cls, self.env_vars)


class FileSource(DotEnvSettingsSource):
    """Source of the sections' values in `.env`."""

    def __call__(self) -> dict[str, Any]:
        return by_section(self.settings_cls, self.env_vars)


class Settings(BaseSettings):
    """Settings by section. The docstring below a section is its title in `docs/settings.md`."""

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        env_ignore_empty=True,
        case_sensitive=False,
        hide_input_in_errors=True,
    )

    listener: ListenerSettings = ListenerSettings()
    """Listener"""
    tls: TlsFiles = TlsFiles()
    """TLS"""
    connections: ConnectionLimits = ConnectionLimits()
    """Connections"""
    bodies: BodyLimits = BodyLimits()
    """Request bodies"""
    json_structure: JsonLimits = JsonLimits()
    """JSON in request bodies"""
    folders: FolderSettings = FolderSettings()
    """Folders"""
    engine: EngineSettings = EngineSettings()
    """Engines"""
    sandbox: SandboxConfig = SandboxConfig()
    """Sandbox"""
    supervision: SupervisionConfig = SupervisionConfig()
    """Supervision of engines"""
    fallback: FallbackSettings = FallbackSettings()
    """Fallback engine"""
    queue: QueueLimits = QueueLimits()
    """Queue"""
    pipeline: PipelineSettings = PipelineSettings()
    """Stages of jobs"""
    checkpoints: CheckpointSettings = CheckpointSettings()
    """Checkpoints of jobs"""
    retention: RetentionConfig = RetentionConfig()
    """Retention"""
    prompts: PromptLimits = PromptLimits()
    """Limits of workflows"""
    node_policy: NodePolicyConfig = NodePolicyConfig()
    """Allowed nodes"""
    callers: CallerLimits = CallerLimits()
    """Limits of one caller"""
    inputs: InputLimits = InputLimits()
    """Inputs"""
    models: ModelSettings = ModelSettings()
    """Models"""
    network: NetworkSettings = NetworkSettings()
    """Private addresses"""
    s3: S3Config = S3Config()
    """S3"""
    webhook: WebhookConfig = WebhookConfig()
    """Webhooks"""
    outputs: OutputConfig = OutputConfig()
    """Outputs"""
    benchmark: BenchmarkConfig = BenchmarkConfig()
    """Start-up benchmark"""
    warm_up: WarmUpConfig = WarmUpConfig()
    """Warm-up"""
    access: AccessSettings = AccessSettings()
    """Access control"""
    autoscaler: AutoscalerSettings = AutoscalerSettings()
    """Autoscaler"""
    vast: VastSettings = VastSettings()
    """Vast"""
    runpod: RunPodSettings = RunPodSettings()
    """RunPod"""
    database: DatabaseConfig = DatabaseConfig()
    """Database"""
    broker: BrokerConfig = BrokerConfig()
    """Broker"""
    gateway: GatewayConfig = GatewayConfig()
    """Gateway"""
    log: LogSettings = LogSettings()
    """Log"""
    tracing: TracingConfig = TracingConfig()
    """Traces"""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        file = dotenv_settings.env_file if isinstance(dotenv_settings, DotEnvSettingsSource) else None
        return init_settings, EnvironmentSource(settings_cls), FileSource(settings_cls, env_file=file)

    @model_validator(mode="after")
    def _platform_is_known(self) -> Settings:
        if self.autoscaler.name == "vast" and not self.vast.has_worker:
            raise ValueError("AUTOSCALER: vast needs MASTER_TOKEN and CONTAINER_ID")
        if self.autoscaler.name == "runpod" and not self.runpod.get_job_url.get_secret_value():
            raise ValueError("AUTOSCALER: runpod needs RUNPOD_WEBHOOK_GET_JOB")
        return self

    @model_validator(mode="after")
    def _checkpoints_have_a_bucket(self) -> Settings:
        if self.checkpoints.preempt_priority is not None and not self.checkpoints.seconds:
            raise ValueError("PREEMPT_PRIORITY: needs CHECKPOINT_SECONDS, from which interrupted jobs go on")
        if self.checkpoints.seconds and self.checkpoints.are_copied and self.s3.missing_names:
            raise ValueError(f"CHECKPOINT_STORE: s3 needs {', '.join(self.s3.missing_names)}")
        return self

    @model_validator(mode="after")
    def _sandbox_has_no_port(self) -> Settings:
        flags = {flag.partition("=")[0] for flag in self.engine.arguments}
        if self.sandbox.level == "bwrap" and flags & {"--port", "--listen"}:
            raise ValueError(
                "ENGINE_ARGS: --port and --listen have no use in ENGINE_SANDBOX=bwrap, which has no network"
            )
        return self

    @model_validator(mode="after")
    def _front_end_has_its_folders(self) -> Settings:
        if self.engine.has_front_end and self.sandbox.level != "off":
            raise ValueError("FRONT_END: needs ENGINE_SANDBOX=off, as workflows and settings are files of the engine")
        return self

    @property
    def platform(self) -> PlatformName:
        """Autoscaler that is configured; `auto` depends on the variables that the platforms set."""
        if self.autoscaler.name != "auto":
            return self.autoscaler.name
        if self.runpod.get_job_url.get_secret_value():
            return "runpod"
        return "vast" if self.vast.has_worker else "plain"

    @property
    def is_under_vast(self) -> bool:
        return self.platform == "vast"

    @property
    def asks_for_keys(self) -> bool:
        has_credentials = self.access.has_api_keys or bool(self.vast.master_token.get_secret_value())
        return has_credentials and not self.access.is_unsecured

    @property
    def listen_host(self) -> str:
        """Address to listen on: `listener.host`; by default all interfaces under Vast, for its port map.

        Under RunPod jobs come by its loop alone: without keys the port is open to this machine only.
        """
        host = self.listener.host
        if self.platform == "runpod" and not self.asks_for_keys and not self.access.is_unsecured:
            return host if is_of_this_machine(host) else "127.0.0.1"
        return "0.0.0.0" if self.is_under_vast and "host" not in self.listener.model_fields_set else host

    @property
    def local_url(self) -> str:
        """URL of the worker from its own machine."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.listen_host, self.listen_host)
        scheme = "https" if self.listener.uses_ssl else "http"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.listener.port}"

    @property
    def own_key_path(self) -> Path:
        """File in which the running front keeps the key of its own commands."""
        return own_key_path(self.folders.state_path)

    @property
    def keeps_engine_output(self) -> bool:
        """True if an engine keeps files of earlier jobs: `keeps_engine_output`; by default not when it is sandboxed."""
        if self.sandbox.level != "off" and "keeps_engine_output" not in self.outputs.model_fields_set:
            return False
        return self.outputs.keeps_engine_output

    def secret_values(self) -> list[str]:
        """Return the value of every secret that is set."""
        values: list[Any] = [
            getattr(getattr(self, variable.section), variable.attribute) for variable in variables_of(type(self))
        ]
        flat = [item for value in values for item in (value if isinstance(value, tuple) else (value,))]
        return [item.get_secret_value() for item in flat if isinstance(item, SecretStr) and item.get_secret_value()]

    def tls_files(self) -> TlsFiles | None:
        """Return the files for TLS; None where the worker serves plain HTTP."""
        return self.tls if self.listener.uses_ssl else None

    def queue_limits(self) -> QueueLimits:
        """Return the limits of the queue, with a default limit on the wait under Vast."""
        if self.is_under_vast and self.queue.max_wait_seconds is None:
            return self.queue.model_copy(update={"max_wait_seconds": VAST_MAX_WAIT_SECONDS})
        return self.queue

    def json_limits(self) -> JsonLimits:
        """Return the limits on the structure of JSON in bodies, in which a string may fill a whole body."""
        return self.json_structure.model_copy(update={"max_string_bytes": self.bodies.max_bytes})

    def auth_config(self) -> AuthConfig:
        """Return the configuration for the authentication of callers."""
        return AuthConfig(
            master_token=self.vast.master_token,
            keys=self.access.keys,
            key_files=self.access.key_files,
            is_unsecured=self.access.is_unsecured,
            trusts_loopback=self.access.trusts_loopback,
            public_host=urlsplit(self.outputs.public_url).hostname or "",
        )

    def vast_config(self) -> VastConfig:
        """Return the configuration for Vast's reports, sessions and signatures."""
        return VastConfig(
            **dict(self.vast),
            uses_ssl=self.listener.uses_ssl,
            is_unsecured=self.access.is_unsecured,
            host=self.listen_host,
            worker_port=self.listener.port,
            worker_http_port=self.listener.port + 1 if self.vast.http_port is None else self.vast.http_port,
        )

    def runpod_config(self) -> RunPodConfig:
        """Return the configuration of RunPod's loop."""
        tls = self.tls_files()
        return RunPodConfig(
            front_url=self.local_url,
            front_certificate=None if tls is None else tls.certificate,
            key_file=self.own_key_path,
            num_jobs=self.runpod.num_jobs,
            is_refreshed=self.runpod.is_refreshed,
            has_store=not self.s3.missing_names,
        )

    @property
    def checkpoint_directory(self) -> Path:
        """Folder in which engines record the sampling of jobs."""
        return (self.checkpoints.directory or self.folders.state_path / "checkpoints").absolute()

    def engine_launch(self) -> EngineLaunch:
        """Return the configuration for the connection to engines or their start."""
        return EngineLaunch(
            **{**dict(self.engine), "arguments": (*self._engine_limits(), *self.engine.arguments)},
            base_directory=self.folders.base.absolute(),
            metadata=self.outputs.metadata,
            max_input_pixels=self.inputs.max_pixels,
            private_directory=self.folders.state_path / "engine",
            tuning=self.benchmark.tuning,
            compiled_directory=(self.folders.state_path / "compiled").absolute(),
            checkpoint_directory=self.checkpoint_directory if self.checkpoints.seconds else None,
            checkpoint_seconds=self.checkpoints.seconds,
            sandbox=self.sandbox,
            hidden=self._secret_paths(),
            log_level=self.log.effective_level if self.log.effective_level != "info" else "",
        )

    def _engine_limits(self) -> tuple[str, ...]:
        """Return flags that give our engine the front's limits where they differ from the engine's defaults."""
        limits = {name: getattr(self.prompts, name) for name in ("max_nodes", "max_links", "max_bytes")}
        defaults = type(self.prompts).model_fields
        changed = {name: value for name, value in limits.items() if value != defaults[name].default}
        return tuple(
            word
            for name, value in changed.items()
            for word in (f"--max-prompt-{name.removeprefix('max_')}", str(value))
        )

    def _secret_paths(self) -> tuple[Path, ...]:
        key_files = (self.access.api_keys_file, self.access.admin_api_keys_file)
        paths = (self.folders.state_path, Path(".env"), self.tls.key, *key_files)
        return tuple(path.absolute() for path in paths if path is not None)


def own_key_path(state_directory: Path) -> Path:
    """Return the path of the front's own key within a state directory."""
    return state_directory / "keys" / "front"


def is_of_this_machine(host: str) -> bool:
    """Return True for an address or name that only this machine reaches."""
    return is_loopback(host) or host.lower() == "localhost"
