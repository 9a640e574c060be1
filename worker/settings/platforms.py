"""Settings of the platform that rents out the machine: Vast, RunPod or none, and the unit of work reported to it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, SecretStr

from darkroom.worker.settings.section import (
    LOWER,
    Addresses,
    Port,
    PositiveInt,
    PositiveSeconds,
    Section,
    env,
)
from darkroom.worker.settings.workload import Workload

DEFAULT_REPORT_ADDRESS = "https://run.vast.ai"

PlatformName = Literal["vast", "runpod", "plain"]


class AutoscalerSettings(Section):
    """Autoscaler that receives reports, and the unit of load in them."""

    name: Annotated[Literal["auto", "vast", "runpod", "plain"], LOWER, env("AUTOSCALER")] = "auto"
    """Receiver of load reports: `vast`, `runpod` or `plain` (metrics alone); `auto` depends on the variables that the
    platforms set ([autoscalers](deploying.md#autoscalers))."""

    workload: Annotated[Workload, LOWER, env("WORKLOAD")] = Workload.COMPUTED
    """Unit of load: `computed` from pixels, steps and passes (100 is one 512x512 image of 20 steps), `static` (100
    each) or `1`."""


class VastSettings(Section):
    """Vast's data about this worker. `public_port` comes from `VAST_TCP_PORT_<WORKER_PORT>`, which Vast sets."""

    container_id: Annotated[int | None, env("CONTAINER_ID")] = None
    """Set by Vast."""

    master_token: Annotated[SecretStr, env("MASTER_TOKEN")] = SecretStr("")
    """Set by Vast. With it, requests need Vast's signature, an API key, or to come from this machine."""

    report_addresses: Annotated[
        Addresses, AfterValidator(lambda urls: urls or (DEFAULT_REPORT_ADDRESS,)), env("REPORT_ADDR")
    ] = (DEFAULT_REPORT_ADDRESS,)
    """Comma list of addresses that receive reports. Set by Vast."""

    public_ip: Annotated[str, env("PUBLIC_IPADDR")] = ""
    """Set by Vast."""

    public_port: Port | None = None
    """The public port."""

    http_port: Annotated[Port | None, env("WORKER_HTTP_PORT")] = None
    """Port of Vast's second, plain listener. Empty: the one after `WORKER_PORT`."""

    max_sessions: PositiveInt = 10
    """Vast sessions at a time, as Vast's own worker has them."""

    max_session_seconds: Annotated[PositiveSeconds, Field(allow_inf_nan=False)] = 86400.0
    """The longest life of a Vast session, however often it is used."""

    update_file: Path = Path("/.force_update")
    """File that `/pyworker/update` creates."""

    @property
    def has_worker(self) -> bool:
        """True if Vast has named this worker, with the token that reports need."""
        return bool(self.master_token.get_secret_value()) and self.container_id is not None


class VastConfig(VastSettings):
    """Vast's data about this worker, with the address at which the front listens."""

    uses_ssl: bool
    is_unsecured: bool
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
        """URL that a signed one must equal; empty where ours is not known, as Vast has named no port."""
        return self.url if self.public_ip and self.public_port else ""


class RunPodSettings(Section):
    """RunPod's queue of jobs."""

    get_job_url: Annotated[SecretStr, env("RUNPOD_WEBHOOK_GET_JOB")] = SecretStr("")
    """Set by RunPod. With it, RunPod's loop hands its jobs to this worker."""

    num_jobs: Annotated[PositiveInt, env("RUNPOD_CONCURRENCY")] = 1
    """Jobs taken from RunPod at a time."""

    is_refreshed: Annotated[bool, env("REFRESH_WORKER")] = False
    """Have RunPod replace the worker after each job."""


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
class VastTiming:
    """Durations of Vast's protocol in seconds, which tests shorten.

    `tick` is the reports' interval, `key_waits` the pauses between tries for the key.
    """

    tick: float = 1.0
    at_least_every: float = 10.0
    request: float = 10.0
    between_tries: float = 2.0
    num_tries: int = 3
    collect_sessions: float = 5.0
    key_request: float = 10.0
    key_waits: tuple[float, ...] = (1.0, 2.0, 4.0, 8.0)
    key_pause: float = 30.0
