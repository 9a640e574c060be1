"""External input and output of the front, built from the settings."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from pydantic import SecretStr

from worker.engines.command import input_folder_of
from worker.errors import InputRejected, Problem, RequestRejected
from worker.guard.auth import Gatekeeper
from worker.guard.safe_address import AddressGuard
from worker.inputs.fetch import InputFetcher
from worker.inputs.folder import InputFolder
from worker.inputs.s3_source import S3Source
from worker.inputs.uploads import UploadedFiles
from worker.jobs.checkpoint_copies import S3Checkpoints
from worker.jobs.checkpoints import JobCheckpoints
from worker.jobs.delivered_outputs import DeliveredOutputs
from worker.jobs.fetched_inputs import FOLDER, FetchedInputs
from worker.json.values import JsonObject
from worker.media.process.processes import MediaProcesses
from worker.observe.io_metrics import IoMetrics
from worker.outputs.claimed_outputs import ClaimedOutputs
from worker.outputs.targets.hub import HubTarget, HubUploader, find_hub_problem
from worker.outputs.targets.put import KEY, PutUploader
from worker.outputs.webhook import WebhookSender
from worker.s3.stores import S3Stores
from worker.s3.targets import choose_target, find_missing_bucket, find_missing_key, find_write_problem
from worker.settings.environment import hub_access
from worker.settings.settings import Settings
from worker.settings.store_names import find_endpoint_doubt, find_endpoint_problem

INPUT_CHECKS_AT_ONCE, INPUT_CHECK_BYTES, INPUT_CHECK_SECONDS = 4, 1 << 30, 30.0


class ExternalIo:
    def __init__(self, settings: Settings, io_metrics: IoMetrics, own_key: SecretStr) -> None:
        self._addresses = AddressGuard(settings.network.private_hosts, own_urls=settings.engine.urls)
        launch = settings.engine_launch()
        folder = settings.folders.state_path / "inputs" if launch.urls else input_folder_of(launch) / FOLDER
        self.input_directory = folder
        self._s3_config = s3 = settings.s3
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
        self._put_uploader = PutUploader(self._addresses)
        self._hub_uploader = HubUploader(hub_access)
        self._hub_repos = settings.outputs.hub_repos
        self.uploads = UploadedFiles(input_folder, limits, min_free_bytes, self._of_inputs)
        self.outputs = DeliveredOutputs(
            s3,
            stores,
            settings.outputs.metadata,
            self.claimed_outputs,
            num_delivering=settings.pipeline.num_delivering,
            io_metrics=io_metrics,
            max_bytes=settings.prompts.max_output_bytes,
            put_uploader=self._put_uploader,
            hub_uploader=self._hub_uploader,
            media_processes=self._of_outputs,
        )
        self.webhook_sender = WebhookSender(self._addresses)
        self.guard = Gatekeeper(settings.auth_config(), own_key)

    def build_checkpoints(self, settings: Settings) -> JobCheckpoints | None:
        """Return the owner of jobs' checkpoints, None where there are none."""
        config = settings.checkpoints
        if not config.seconds:
            return None
        target = choose_target(None, settings.s3) if config.store == "s3" else None
        copies = None if target is None else S3Checkpoints(self._stores, target)
        return JobCheckpoints(settings.checkpoint_directory, config.seconds, copies)

    def check_webhook_url(self, url: str) -> None:
        """Check a webhook's URL. Raises RequestRejected for an address that cannot be a webhook's."""
        self._check_form(url, "input.webhook.url")

    def check_put_url(self, url: str) -> None:
        """Check the address of a request's store. Raises RequestRejected for one that cannot be a store's."""
        self._check_form(url.replace(KEY, "key"), "input.put.url")

    def check_hub(self, asked: Mapping[str, Any]) -> None:
        """Check a request's repository. Raises RequestRejected for one that it may not write to."""
        target = HubTarget(**asked)
        problem = find_hub_problem(target, self._hub_repos, has_own_token=self._hub_uploader.has_own_token)
        if problem is not None:
            raise RequestRejected([problem])

    def check_s3(self, asked: JsonObject) -> Problem | None:
        """Check a request's S3 settings; return what is doubtful about them and no reason to refuse it, or None.

        Raises RequestRejected for an address that cannot be a store's, for another one than the operator's without its
        own credentials, and for uses that the operator's credentials do not permit.
        """
        url = str(asked.get("endpoint_url") or "")
        if url and url != self._s3_config.endpoint_url:
            self._check_form(url, "input.s3.endpoint_url")
            if not (asked.get("access_key_id") and asked.get("secret_access_key")):
                message = "another endpoint than the worker's needs access_key_id and secret_access_key beside it"
                raise RequestRejected([Problem(message, field="input.s3.access_key_id", type="missing")])
        if problem := find_missing_key(asked, self._s3_config) or find_write_problem(asked, self._s3_config):
            raise RequestRejected([problem])
        own = url or self._s3_config.endpoint_url, str(asked.get("bucket_name") or self._s3_config.bucket_name)
        if wrong := find_endpoint_problem(*own):
            raise RequestRejected([Problem(wrong, field="input.s3.endpoint_url", type="bucket_in_address")])
        if doubt := find_endpoint_doubt(*own):
            return Problem(doubt, field="input.s3.endpoint_url", type="bucket_in_address")
        return find_missing_bucket(asked, self._s3_config)

    def _check_form(self, url: str, field: str) -> None:
        try:
            self._addresses.check_form(url)
        except InputRejected as error:
            raise RequestRejected([Problem(error.message, field=field, type=error.code)]) from None

    async def close(self) -> None:
        await self.inputs.close()
        for processes in (self._of_inputs, self._of_outputs):
            await asyncio.to_thread(processes.close)
        await self._stores.close()
        await self.webhook_sender.close()
        await self._put_uploader.close()
