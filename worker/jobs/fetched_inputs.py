"""The pipeline's first stage: fetch the files that a prompt refers to and replace the references by file names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable, Mapping

from darkroom.contract.graph.prompt_graph import PromptGraph
from darkroom.contract.wire import OWN_FILES
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.errors import InputRejected, Problem, RequestRejected
from darkroom.worker.inputs.fetch import InputFetcher
from darkroom.worker.inputs.file_names import FETCHED_FOLDER, find_foreign_names
from darkroom.worker.inputs.folder import InputFolder
from darkroom.worker.inputs.references import INLINE, UPLOAD_PREFIX, Reference, find_references, replace_references
from darkroom.worker.jobs.protocols import PlannedInputs
from darkroom.worker.json.values import JsonObject, object_at
from darkroom.worker.media.kinds import Media
from darkroom.worker.storage.job import Credentials, Job

FETCHED_AT_ONCE = 8  # per job
FOLDER = FETCHED_FOLDER
FETCHED_NAME = re.compile(rf"{FOLDER}/([0-9a-f]{{64}}\.\w+)")
_PENDING_EXTENSION: Mapping[Media, str] = {"image": "png", "latent": "latent", "file": "bin"}


class FetchedInputs:
    """An JobInputs that fetches over HTTP and S3.

    The folder is `darkroom` in the engine's input folder if the engine is on this machine.
    """

    def __init__(self, fetcher: InputFetcher, folder: InputFolder, *, shares_files: bool = False) -> None:
        self._fetcher = fetcher
        self._folder = folder
        self._shares_files = shares_files

    def plan(self, graph: PromptGraph) -> PlannedInputs:
        """Return the final form of the prompt, with placeholder names for the files that are not fetched yet."""
        references = find_references(graph)
        if not references:
            return PlannedInputs(graph.prompt, ())
        names = {
            reference: f"{FOLDER}/pending-{index}.{_PENDING_EXTENSION[reference.media]}"
            for index, reference in enumerate(references)
        }
        return PlannedInputs(replace_references(graph.prompt, names), tuple(names.values()))

    def check(
        self,
        graph: PromptGraph,
        credentials: Credentials | None,
        parts: Collection[str] = (),
        *,
        engine_checks_links: bool = False,
    ) -> None:
        """Check a prompt as received, before any of its files has a name here.

        Raises RequestRejected with every input that provably cannot be fetched, without trying, and every input that
        names a file of another job.
        """
        problems = (
            []
            if self._shares_files
            else find_foreign_names(graph.prompt, graph.object_info, parts, engine_checks_links=engine_checks_links)
        )
        foreign = {(problem.node_id, problem.field) for problem in problems}
        for reference in find_references(graph):
            if (reference.node_id, reference.input_name) in foreign:
                continue
            refused = self._fetcher.find_problem(reference, _s3_of(credentials))
            if refused is not None:
                problems.append(_problem_of(reference, refused))
        if problems:
            raise RequestRejected(problems)

    def scope(self, prompt: JsonObject, engine: EngineClient) -> JsonObject:
        """Return the files that a placed prompt may read, for an engine of our own; empty if it may read all."""
        if self._shares_files or not engine.has_check:
            return {}
        return {OWN_FILES: sorted(f"{FOLDER}/{name}" for name in _fetched_names(prompt))}

    async def keep_inline(self, graph: PromptGraph, job_id: str) -> JsonObject:
        """Store the inline data of a prompt and return the prompt with `upload:` addresses in its place.

        A queue of jobs with inline images would fill the memory and the database. Raises RequestRejected with every
        broken input, and DiskLow.
        """
        kept: dict[Reference, str] = {}
        problems = []
        for reference in find_references(graph):
            if reference.source not in INLINE:
                continue
            try:
                kept[reference] = UPLOAD_PREFIX + (await self._fetcher.fetch(reference, job_id)).file_name
            except InputRejected as refused:
                problems.append(_problem_of(reference, refused))
        if problems:
            raise RequestRejected(problems)
        return replace_references(graph.prompt, kept)

    async def fetch(self, job: Job, engine: EngineClient) -> JsonObject:
        """Fetch the job's inputs and return its prompt with their file names. Raises InputRejected, DiskLow.

        The files are stored here; the engine that runs the job receives them by `place`. `engine` is used only to
        determine which inputs take a file.
        """
        return await self._fetch(job.prompt, job.id, job.credentials, engine)

    async def fetch_for(
        self, prompt: JsonObject, owner_id: str, credentials: Credentials | None, engine: EngineClient
    ) -> JsonObject:
        """Fetch and place the inputs of the operator's own prompt at this engine, until their owner is released."""
        fetched = await self._fetch(prompt, owner_id, credentials, engine, is_operators=True)
        return await self.place(fetched, engine)

    async def place(self, prompt: JsonObject, engine: EngineClient) -> JsonObject:
        """Return the prompt with the names that this engine uses for the fetched files.

        An engine without our disk is sent each file once. Raises InputRejected if it refuses a file, and
        EngineUnreachable if it cannot be reached.
        """
        if engine.folders is not None:
            return prompt
        names = _fetched_names(prompt)
        for name in sorted(names - engine.files.uploaded.keys()):
            path = self._folder.path / name
            if await asyncio.to_thread(path.is_file):
                engine.files.uploaded[name] = await engine.files.upload_image(path, name)
        there = {f"{FOLDER}/{name}": engine.files.uploaded.get(name, f"{FOLDER}/{name}") for name in names}
        return {node_id: _renamed(node, there) for node_id, node in prompt.items()} if names else prompt

    async def _fetch(
        self,
        prompt: JsonObject,
        owner_id: str,
        credentials: Credentials | None,
        engine: EngineClient,
        *,
        is_operators: bool = False,
    ) -> JsonObject:
        references = find_references(PromptGraph(prompt, await engine.object_info()))
        if not references:
            return prompt
        # A file named twice is fetched once; the first failure cancels the other downloads.
        first_of = {(reference.value, reference.media): reference for reference in reversed(references)}
        at_once = asyncio.Semaphore(FETCHED_AT_ONCE)

        async def bring(reference: Reference) -> str:
            async with at_once:
                return await self._bring(reference, owner_id, credentials, is_operators)

        try:
            async with asyncio.TaskGroup() as group:
                tasks = {key: group.create_task(bring(reference)) for key, reference in first_of.items()}
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        files = {reference: tasks[reference.value, reference.media].result() for reference in references}
        return replace_references(prompt, files)

    def release(self, job_id: str) -> None:
        """Release the inputs of a job that has ended."""
        self._folder.release(job_id)

    def held_bytes(self, job_ids: Iterable[str]) -> int:
        """Return the bytes of the inputs that jobs hold, those that were uploaded with them included."""
        return self._folder.held_bytes(job_ids)

    async def forget_unused(self, before_seconds: float, max_bytes: int) -> None:
        """Evict files that no job needs: those unused since the given time, and the oldest above the size limit."""
        await asyncio.to_thread(self._folder.sweep, before_seconds, max_bytes)

    async def close(self) -> None:
        await self._fetcher.close()

    async def _bring(
        self, reference: Reference, owner_id: str, credentials: Credentials | None, is_operators: bool
    ) -> str:
        asked_s3 = _s3_of(credentials)
        headers = None if credentials is None else credentials.download_headers
        fetched = await self._fetcher.fetch(reference, owner_id, asked_s3, headers, is_operators=is_operators)
        return f"{FOLDER}/{fetched.file_name}"


def _problem_of(reference: Reference, refused: InputRejected) -> Problem:
    return Problem(
        refused.message,
        field=reference.input_name,
        node_id=reference.node_id,
        class_type=reference.class_type,
        type=refused.code,
    )


def _fetched_names(prompt: JsonObject) -> set[str]:
    """Return the names of the files in our folder that a prompt refers to."""
    values = (value for node in prompt.values() for value in object_at(node, "inputs").values())
    found = (FETCHED_NAME.fullmatch(value) for value in values if isinstance(value, str))
    return {match[1] for match in found if match is not None}


def _renamed(node: object, names: Mapping[str, str]) -> JsonObject:
    inputs = {
        key: names.get(value, value) if isinstance(value, str) else value
        for key, value in object_at(node, "inputs").items()
    }
    return {**object_at(node), "inputs": inputs}


def _s3_of(credentials: Credentials | None) -> JsonObject | None:
    return None if credentials is None else credentials.stores.get("s3")
