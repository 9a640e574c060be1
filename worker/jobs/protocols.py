"""Interfaces of the pipeline's first and last stages: inputs to fetch, outputs to collect and deliver."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from darkroom.contract.graph.prompt_graph import PromptGraph
from darkroom.worker.engines.client.client import EngineClient
from darkroom.worker.engines.outcome import RunOutcome
from darkroom.worker.json.values import JsonObject
from darkroom.worker.outputs.delivered import OutputRecord
from darkroom.worker.storage.job import Credentials, Job


@dataclass(frozen=True, slots=True)
class PlannedInputs:
    """A prompt for the graph check, in which `pending_files` stand for the files that are not fetched yet."""

    prompt: JsonObject
    pending_files: Collection[str]


class JobInputs(Protocol):
    def plan(self, graph: PromptGraph) -> PlannedInputs: ...

    def check(
        self,
        graph: PromptGraph,
        credentials: Credentials | None,
        parts: Collection[str] = (),
        *,
        engine_checks_links: bool = False,
    ) -> None:
        """Check a prompt as received; `parts` are names of files that came with it.

        Raises RequestRejected with every input that provably cannot be fetched, without trying, and every input that
        names a file of another job. If the engine does not check the names that arrive through links, such links are
        refused too.
        """
        ...

    def scope(self, prompt: JsonObject, engine: EngineClient) -> JsonObject:
        """Return the files that a placed prompt may read, in the form that this engine takes."""
        ...

    async def keep_inline(self, graph: PromptGraph, job_id: str) -> JsonObject:
        """Store the inline data of a prompt, and return the prompt with addresses of the stored files.

        The job holds these files from then on. Raises RequestRejected with every broken input, and DiskLow.
        """
        ...

    async def fetch(self, job: Job, engine: EngineClient) -> JsonObject:
        """Return the job's prompt with the names of its fetched files, which are kept until the job is released.

        Raises InputRejected, DiskLow.
        """
        ...

    async def place(self, prompt: JsonObject, engine: EngineClient) -> JsonObject:
        """Return the prompt with this engine's names of the fetched files, after sending it the files that it lacks.

        Raises InputRejected, EngineUnreachable.
        """
        ...

    def release(self, job_id: str) -> None:
        """Release the inputs of a job that has ended."""
        ...


class JobOutputs(Protocol):
    async def collect(
        self, job: Job, outcome: RunOutcome, directory: Path, engine: EngineClient
    ) -> Sequence[OutputRecord]: ...

    def sends_away(self, job: Job) -> bool:
        """Return True if delivery involves another machine. A local delivery is over before a commit would be."""
        ...

    async def deliver(self, job: Job, directory: Path) -> Sequence[OutputRecord]:
        """Return the job's processed outputs, with `url` or `upload_error` added.

        A failed output does not fail the others.
        """
        ...
