"""Platform: the worker's environment built from the settings: autoscaler, envelopes, unit of work."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import httpx
from prometheus_client import CollectorRegistry

from host.distribution import install_command
from worker.autoscaler.autoscaler import Autoscaler, Caller, FanOut
from worker.autoscaler.plain import PlainAutoscaler
from worker.engines.families import Family, ModelFile
from worker.errors import SessionGone, SettingsInvalid
from worker.guard.plain_responses import plain_client
from worker.integrations.runpod.autoscaler import RunPodAutoscaler
from worker.integrations.vast.autoscaler import VastAutoscaler
from worker.integrations.vast.envelope import Envelope, EnvelopeOpener
from worker.integrations.vast.ledger import Ledger
from worker.integrations.vast.public_key import PublicKeySource
from worker.integrations.vast.reports import Reporter
from worker.integrations.vast.sessions import SessionStore
from worker.integrations.vast.timing import VastTiming
from worker.json.values import JsonObject
from worker.prompts.cost import NO_FAMILIES, cost_of
from worker.settings.environment import runpod_environment
from worker.settings.platforms import RunPodConfig, VastConfig
from worker.settings.settings import Settings
from worker.settings.workload import Workload
from worker.storage.job import Job


@dataclass(frozen=True, slots=True)
class Platform:
    """Parts for the worker's platform. `vast` None: no session routes and reports. `vast_config` is always set.

    `http` sends requests to Vast; None where there are none.
    """

    autoscaler: Autoscaler
    envelopes: EnvelopeOpener
    vast: VastAutoscaler | None
    vast_config: VastConfig
    workload: Workload
    keys: PublicKeySource | None
    http: httpx.AsyncClient | None
    _asking: list[asyncio.Task[None]] = field(default_factory=list)

    def cost_of(self, prompt: JsonObject, families: Mapping[ModelFile, Family] = NO_FAMILIES) -> float:
        return cost_of(prompt, self.workload, families)

    def open_envelope(self, body: JsonObject) -> Envelope:
        """Open a request's envelope; a request of a session extends that.

        Raises EnvelopeRejected, SignatureRejected, NotReady or SessionGone.
        """
        envelope = self.envelopes.open(body)
        if envelope.session_id is not None:
            if self.vast is None:
                raise SessionGone("invalid session")
            self.vast.sessions.touch(envelope.session_id)
        return envelope

    def job_accepted(self, job: Job, caller: Caller | None) -> None:
        """Report an accepted job, also for a request that attached to a job, or to the stored result of one."""
        self.autoscaler.job_accepted(job.id, 0.0 if job.state.is_terminal else job.cost, caller)
        if job.state.is_terminal:
            self.autoscaler.job_ended(job.id, job.state)

    async def start(self) -> None:
        """Start the autoscaler. Raises OSError when a port is taken."""
        await self.autoscaler.start()
        if self.keys is not None and self.vast is None:  # signed requests, but no reports
            asking = self.keys.poll(lambda _reason: None, lambda: None)
            self._asking.append(asyncio.create_task(asking, name="public-key"))

    async def close(self) -> None:
        for task in self._asking:
            task.cancel()
        await self.autoscaler.close()
        if self.http is not None:
            await self.http.aclose()


def build_platform(
    settings: Settings,
    registry: CollectorRegistry,
    cancel_job: Callable[[str], None],
    stop_front: Callable[[int], None],
    timing: VastTiming,
) -> Platform:
    """Build the platform from the settings.

    `cancel_job` ends a job by its id, if there is one that has not ended; `stop_front` ends all, with an exit code.

    Raises SettingsInvalid when the platform's package is not installed.
    """
    config = settings.vast_config()
    has_token = bool(config.master_token.get_secret_value())
    http = plain_client() if has_token or settings.is_under_vast else None
    is_signed = has_token and not config.is_unsecured
    keys = PublicKeySource(config.report_addresses, http, timing) if http is not None and is_signed else None
    vast = _build_vast(config, keys, http, cancel_job, timing) if http is not None and settings.is_under_vast else None
    members: list[Autoscaler] = [PlainAutoscaler(registry)]
    if vast is not None:
        members.append(vast)
    elif settings.platform == "runpod":
        members.append(_build_runpod(settings.runpod_config(), stop_front))
    return Platform(
        autoscaler=FanOut(members),
        envelopes=EnvelopeOpener(keys, is_unsecured=config.is_unsecured, own_url=config.checked_url),
        vast=vast,
        vast_config=config,
        workload=settings.autoscaler.workload,
        keys=keys,
        http=http,
    )


def _build_runpod(config: RunPodConfig, stop_front: Callable[[int], None]) -> RunPodAutoscaler:
    if importlib.util.find_spec("runpod") is None:
        raise SettingsInvalid(f"AUTOSCALER: RunPod's package is not installed; {install_command('runpod')}")
    arguments = [config.front_url, "--concurrency", str(config.num_jobs)]
    arguments += [] if config.front_certificate is None else ["--certificate", str(config.front_certificate)]
    arguments += ["--key-file", str(config.key_file)]
    arguments += ["--refresh-worker"] if config.is_refreshed else []
    arguments += ["--uploads"] if config.has_store else []
    return RunPodAutoscaler(arguments, runpod_environment(), stop_front)


def _build_vast(
    config: VastConfig,
    keys: PublicKeySource | None,
    http: httpx.AsyncClient,
    cancel_job: Callable[[str], None],
    timing: VastTiming,
) -> VastAutoscaler:
    ledger = Ledger()
    reporter = Reporter(config, ledger, http, timing)
    sessions = SessionStore(config.max_sessions, config.max_session_seconds)
    return VastAutoscaler(reporter, ledger, sessions, keys, cancel_job, timing)
