"""External input and output of the front, built from the settings."""

from __future__ import annotations

import asyncio

from pydantic import SecretStr

from darkroom.worker.engines.command import input_folder_of
from darkroom.worker.guard.auth import Gatekeeper
from darkroom.worker.guard.safe_address import AddressGuard
from darkroom.worker.inputs.fetch import InputFetcher
from darkroom.worker.inputs.folder import InputFolder
from darkroom.worker.inputs.s3_source import S3Source
from darkroom.worker.inputs.uploads import UploadedFiles
from darkroom.worker.jobs.checkpoint_copies import S3Checkpoints
from darkroom.worker.jobs.checkpoints import JobCheckpoints
from darkroom.worker.jobs.delivered_outputs import DeliveredOutputs
from darkroom.worker.jobs.fetched_inputs import FOLDER, FetchedInputs
from darkroom.worker.media.process.processes import MediaProcesses
from darkroom.worker.observe.io_metrics import IoMetrics
from darkroom.worker.outputs.claimed_outputs import ClaimedOutputs
from darkroom.worker.outputs.targets.hub import HubOutputTarget, HubUploader
from darkroom.worker.outputs.targets.put import PutOutputTarget
from darkroom.worker.outputs.targets.s3 import S3OutputTarget
from darkroom.worker.outputs.targets.target import OutputTargets, check_address
from darkroom.worker.outputs.webhook import WebhookSender
from darkroom.worker.s3.stores import S3Stores
from darkroom.worker.s3.targets import choose_target
from darkroom.worker.settings.environment import hub_access
from darkroom.worker.settings.settings import Settings

INPUT_CHECKS_AT_ONCE, INPUT_CHECK_BYTES, INPUT_CHECK_SECONDS = 4, 1 << 30, 30.0


class ExternalIo:
    def __init__(self, settings: Settings, io_metrics: IoMetrics, own_key: SecretStr) -> None:
        self._addresses = AddressGuard(settings.network.private_hosts, own_urls=settings.engine.urls)
        launch = settings.engine_launch()
        folder = settings.folders.state_path / "inputs" if launch.urls else input_folder_of(launch) / FOLDER
        self.input_directory = folder
        s3 = settings.s3
        self._stores = stores = S3Stores(self._addresses)
        limits = settings.inputs
        input_folder = InputFolder(folder)
        source = S3Source(stores, s3, limits)
        # Strangers' inputs do not keep the outputs of others waiting, so each has its own processes.
        self._of_inputs = MediaProcesses(INPUT_CHECKS_AT_ONCE, INPUT_CHECK_BYTES, INPUT_CHECK_SECONDS)
        self._of_outputs = MediaProcesses()
        min_free_bytes = settings.queue.min_free_disk_bytes
        fetcher = InputFetcher(
            self._addresses, input_folder, limits, source, min_free_bytes, io_metrics, self._of_inputs
        )
        self.inputs = FetchedInputs(fetcher, input_folder, shares_files=settings.inputs.are_shared)
        self.claimed_outputs = ClaimedOutputs(keeps=settings.keeps_engine_output or bool(launch.urls))
        self.s3_target = S3OutputTarget(s3, stores, self._addresses)
        self._put_target = PutOutputTarget(self._addresses)
        hub_target = HubOutputTarget(HubUploader(hub_access), settings.outputs.hub_repos)
        self.targets = OutputTargets({"s3": self.s3_target, "put": self._put_target, "hf": hub_target})
        self.uploads = UploadedFiles(input_folder, limits, min_free_bytes, self._of_inputs)
        self.outputs = DeliveredOutputs(
            s3,
            self.targets,
            settings.outputs.metadata,
            self.claimed_outputs,
            num_delivering=settings.pipeline.num_delivering,
            io_metrics=io_metrics,
            max_bytes=settings.prompts.max_output_bytes,
            media_processes=self._of_outputs,
        )
        self.webhook_sender = WebhookSender(self._addresses)
        self.guard = Gatekeeper(settings.auth_config(), own_key)

    def build_checkpoints(self, settings: Settings) -> JobCheckpoints | None:
        """Return the owner of jobs' checkpoints, None where there are none."""
        config = settings.checkpoints
        if not config.seconds:
            return None
        target = choose_target(None, settings.s3) if config.are_copied else None
        copies = None if target is None else S3Checkpoints(self._stores, target)
        return JobCheckpoints(settings.checkpoint_directory, config.seconds, copies)

    def check_webhook_url(self, url: str) -> None:
        """Check a webhook's URL. Raises RequestRejected for an address that cannot be a webhook's."""
        check_address(self._addresses, url, "input.webhook.url")

    async def close(self) -> None:
        await self.inputs.close()
        for processes in (self._of_inputs, self._of_outputs):
            await asyncio.to_thread(processes.close)
        await self._stores.close()
        await self.webhook_sender.close()
        await self._put_target.close()
