"""Parts that a pipeline is put together from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from darkroom.worker.engines.fallback.fallback_engine import FallbackEngine
from darkroom.worker.jobs.checkpoints import JobCheckpoints
from darkroom.worker.jobs.job_models import JobModels
from darkroom.worker.jobs.protocols import JobInputs, JobOutputs
from darkroom.worker.storage.job import Credentials, Job
from darkroom.worker.storage.webhook_rows import WebhookRow


@dataclass(frozen=True, slots=True)
class PipelineLimits:
    """Limits of the pipeline. `num_running_of_caller` None: no limit.

    Jobs of `preempt_priority` or more take an engine from others; None: none does.
    """

    job_timeout_seconds: float
    num_fetching: int
    num_running_of_caller: int | None = None
    preempt_priority: int | None = None

    @property
    def num_fetching_of_caller(self) -> int | None:
        """Half of the slots: where callers are limited at all, slow downloads of one leave room for others."""
        return None if self.num_running_of_caller is None else max(1, self.num_fetching // 2)


@dataclass(frozen=True, slots=True)
class PipelineParts:
    """Services of a job's stages besides our engines.

    None: the worker downloads no models, keeps no checkpoints, or has no fallback.
    """

    inputs: JobInputs
    outputs: JobOutputs
    models: JobModels | None = None
    checkpoints: JobCheckpoints | None = None
    fallback: FallbackEngine | None = None

    def release(self, job_id: str) -> None:
        """Release the files and models of a job that has ended."""
        self.inputs.release(job_id)
        if self.models is not None:
            self.models.release(job_id)


@dataclass(frozen=True, slots=True)
class PipelineHooks:
    """Functions called for a job: when its task starts, when an engine begins with it, and when it has ended.

    `make_webhooks` returns the webhooks to store with its end.
    """

    make_webhooks: Callable[[Job, Credentials | None], Sequence[WebhookRow]]
    on_start: Callable[[Job], None]
    on_end: Callable[[Job], None]
    on_accepted: Callable[[Job], None] = lambda job: None
