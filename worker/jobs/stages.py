"""What the pipeline asks of its two ends: inputs to fetch, outputs to collect and deliver."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from worker.engine.client import EngineClient
from worker.engine.outcome import RunOutcome
from worker.jobs.job import Credentials, Job

OutputRecord = dict[str, Any]
"""One output as stored with the job: the public fields of the result, and `path` below the job's folder."""


@dataclass(frozen=True, slots=True)
class PlannedInputs:
    """A prompt whose files still to be fetched have been replaced by `pending_files`, for the graph check."""

    prompt: Mapping[str, Any]
    pending_files: Collection[str]


class InputStage(Protocol):
    def plan(self, prompt: Mapping[str, Any], object_info: Mapping[str, Any]) -> PlannedInputs: ...

    def check(
        self,
        prompt: Mapping[str, Any],
        object_info: Mapping[str, Any],
        credentials: Credentials | None,
        parts: Collection[str] = (),
        *,
        engine_checks_links: bool = False,
    ) -> None:
        """Check a prompt as it came; `parts` are names of files that came with it.

        Raises RequestRejected with every input that cannot be fetched, as far as that shows without trying, and every
        one that names a file of another job. Where the engine does not check the names that links bring, such links
        are refused too.
        """
        ...

    def scope(self, prompt: Mapping[str, Any], engine: EngineClient) -> Mapping[str, Any]:
        """Return what this engine is told of the files that a placed prompt may read."""
        ...

    async def keep_inline(
        self, prompt: Mapping[str, Any], object_info: Mapping[str, Any], job_id: str
    ) -> Mapping[str, Any]:
        """The prompt with addresses of files in place of the data that it carries along, which the job has from then
        on. Raises RequestRejected with every one that is broken, DiskLow.
        """
        ...

    async def fetch(self, job: Job, engine: EngineClient) -> Mapping[str, Any]:
        """The job's prompt with the names of the fetched files in it; they stay until the job is released.

        Raises InputRejected, DiskLow.
        """
        ...

    async def place(self, prompt: Mapping[str, Any], engine: EngineClient) -> Mapping[str, Any]:
        """The prompt with the names under which this engine has the fetched files; it is sent those that it lacks.

        Raises InputRejected, EngineUnreachable.
        """
        ...

    def release(self, job_id: str) -> None:
        """The job has ended and needs its inputs no more."""
        ...


class OutputStage(Protocol):
    async def collect(
        self, job: Job, outcome: RunOutcome, directory: Path, engine: EngineClient
    ) -> Sequence[OutputRecord]: ...

    def sends_away(self, job: Job) -> bool:
        """Whether delivery reaches beyond this machine. What does not is over before a commit would be."""
        ...

    async def deliver(self, job: Job, directory: Path) -> Sequence[OutputRecord]:
        """The job's outputs as its request wants them, with `url` or `upload_error` added. One that fails does not fail
        the others.
        """
        ...
