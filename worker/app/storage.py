"""Storage of the front: jobs, models, assets and webhooks on disk, and the external input and output beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from darkroom.worker.app.external_io import ExternalIo
from darkroom.worker.engines.pool import EnginePool
from darkroom.worker.guard.identity.own_key import OwnKey
from darkroom.worker.guard.rate_limits import key_name_of
from darkroom.worker.jobs.caller_quota import StoredElsewhere
from darkroom.worker.jobs.checkpoints import JobCheckpoints
from darkroom.worker.jobs.expiry import Expiry
from darkroom.worker.jobs.job_models import JobModels
from darkroom.worker.jobs.outbox import Outbox
from darkroom.worker.jobs.removal import JobRemoval
from darkroom.worker.models.library import build_library
from darkroom.worker.observe.io_metrics import IoMetrics
from darkroom.worker.observe.model_metrics import ModelMetrics
from darkroom.worker.observe.tracing import Tracer
from darkroom.worker.settings.settings import Settings
from darkroom.worker.storage.asset_store import AssetStore
from darkroom.worker.storage.job import Job
from darkroom.worker.storage.postgres_database import PostgresDatabase
from darkroom.worker.storage.state_directory import StateDirectory
from darkroom.worker.storage.store import JobStore


@dataclass(frozen=True, slots=True)
class Storage:
    """Owners of what the worker keeps."""

    store: JobStore
    external_io: ExternalIo
    own_key: OwnKey
    models: JobModels
    checkpoints: JobCheckpoints | None
    """None: checkpoints are off."""
    assets: AssetStore
    outbox: Outbox
    io_metrics: IoMetrics
    model_metrics: ModelMetrics

    def hold_uploads(self) -> None:
        """Hold the uploaded inputs of the jobs in the store: they cannot be fetched again."""
        for job in self.store.jobs.values():
            self.external_io.uploads.hold(job.prompt, job.id)

    def stored_elsewhere(self) -> StoredElsewhere:
        """Return the functions that count the bytes of callers outside the results."""
        return StoredElsewhere(self.external_io.inputs.held_bytes, self._checkpoint_bytes, self._asset_bytes)

    def _checkpoint_bytes(self, job: Job) -> int:
        return 0 if self.checkpoints is None else self.checkpoints.bytes_of(job)

    def _asset_bytes(self, caller: str) -> int:
        """Return the bytes of a caller's assets; callers without a key have one sum together."""
        return self.assets.used_bytes(key_name_of(caller))


def build_storage(
    settings: Settings,
    tracer: Tracer,
    *,
    held: StateDirectory | None,
    on_taken_over: Callable[[], None],
    on_change: Callable[[], None],
) -> Storage:
    """Build the storage. `held` is the state directory if this process has its lock already.

    `on_taken_over` is called when another worker has this one's jobs, `on_change`, from any thread, when the
    model files have changed.
    """
    state_path = settings.folders.state_path
    store = JobStore(
        state_path,
        database=PostgresDatabase(settings.database) if settings.database.is_set else None,
        on_taken_over=on_taken_over,
        held=held,
    )
    io_metrics, model_metrics, own_key = IoMetrics(), ModelMetrics(), OwnKey(state_path)
    external_io = ExternalIo(settings, io_metrics, own_key.secret)
    return Storage(
        store,
        external_io,
        own_key,
        JobModels(build_library(settings), settings.models, state_path, model_metrics, on_change),
        external_io.build_checkpoints(settings),
        AssetStore(
            store, external_io.uploads, settings.queue.min_free_disk_bytes, settings.retention.result_ttl_seconds
        ),
        Outbox(store, external_io.webhook_sender, settings.webhook, io_metrics, tracer),
        io_metrics,
        model_metrics,
    )


def build_expiry(settings: Settings, storage: Storage, pool: EnginePool, removal: JobRemoval) -> Expiry:
    """Build the owner of what is removed by its age."""
    checkpoints = storage.checkpoints
    return Expiry(
        storage.store,
        storage.outbox,
        settings.retention,
        storage.external_io.inputs,
        storage.external_io.claimed_outputs,
        [client.folders.temp for client in pool.clients if client.folders is not None],
        removal,
        storage.assets.forget_unused,
        None if checkpoints is None else checkpoints.forget_old,
    )
