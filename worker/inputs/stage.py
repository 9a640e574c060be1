"""The pipeline's first stage: files that a prompt refers to are fetched and swapped in by name."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from worker.engine.client import EngineClient
from worker.inputs.fetch import FetchedInput, InputFetcher
from worker.inputs.references import Media, Reference, find_references, replace_references
from worker.jobs.job import Credentials
from worker.jobs.stages import PlannedInputs

FOLDER = "darkroom"
_PENDING_EXTENSION: Mapping[Media, str] = {"image": "png", "latent": "latent", "file": "bin"}


class FetchedInputs:
    """An InputStage. The fetcher's folder is `darkroom` in the engine's input folder when that is on this machine."""

    def __init__(self, fetcher: InputFetcher) -> None:
        self._fetcher = fetcher

    def plan(self, prompt: Mapping[str, Any], object_info: Mapping[str, Any]) -> PlannedInputs:
        """The prompt as it will be, with stand-in names for the files still to come."""
        references = find_references(prompt, object_info)
        if not references:
            return PlannedInputs(prompt, ())
        names = {
            reference: f"{FOLDER}/pending-{index}.{_PENDING_EXTENSION[reference.media]}"
            for index, reference in enumerate(references)
        }
        return PlannedInputs(replace_references(prompt, names), tuple(names.values()))

    async def fetch(
        self, prompt: Mapping[str, Any], credentials: Credentials | None, engine: EngineClient
    ) -> Mapping[str, Any]:
        """The prompt with the names of the fetched files in it. Raises InputRejected."""
        references = find_references(prompt, await engine.object_info())
        if not references:
            return prompt
        # What is named twice is fetched once; the first failure ends the other downloads.
        first_of = {(reference.value, reference.media): reference for reference in reversed(references)}
        try:
            async with asyncio.TaskGroup() as group:
                tasks = {key: group.create_task(self._bring(reference, engine)) for key, reference in first_of.items()}
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        files = {reference: tasks[reference.value, reference.media].result() for reference in references}
        return replace_references(prompt, files)

    async def forget_fetched_before(self, time_seconds: float) -> None:
        """Removes files that no job has asked for since. Every fetch makes its file new, so no live job's are older
        than the job.
        """
        await self._fetcher.forget_before(time_seconds)

    async def close(self) -> None:
        await self._fetcher.close()

    async def _bring(self, reference: Reference, engine: EngineClient) -> str:
        fetched: FetchedInput = await self._fetcher.fetch(reference)
        if engine.folders is None:
            return await engine.upload_image(fetched.path, fetched.file_name)
        return f"{FOLDER}/{fetched.file_name}"
