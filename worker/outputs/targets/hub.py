"""Uploads to a repository of the Hugging Face hub, all files of a job as one commit.

The hub refuses a commit that another one has overtaken and counts commits by the hour, so a commit for each file would
not do. The hub's own library runs in a child process: it blocks, and a job's end or deadline ends it with its
connections. The token goes there on standard input and is in no argument, log or error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args
from urllib.parse import quote

from pydantic import ConfigDict, Field, SecretStr, field_validator

from darkroom.start import command_of
from darkroom.worker.errors import Problem, RequestRejected, WorkerError
from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.json.request_model import RequestModel
from darkroom.worker.json.values import JsonObject
from darkroom.worker.outputs.targets.form import check_template, checked
from darkroom.worker.outputs.targets.target import Destination, SentFile, UploadFailed
from darkroom.worker.settings.environment import HubAccess
from darkroom.worker.settings.store_names import REPO_NAME, find_revision_problem, find_secret_problem

RepoType = Literal["dataset", "model", "space"]
REPO_TYPES: tuple[RepoType, ...] = get_args(RepoType)
FOLDERS: Final = {"dataset": "datasets/", "model": "", "space": "spaces/"}
"""Prefix of a repository's name in an address."""

COMMAND: Final = command_of("darkroom.worker.outputs.targets.hub_commit")


class HubInput(RequestModel):
    """Repository of the Hugging Face hub for this request's outputs, committed together when the job has ended."""

    model_config = ConfigDict(extra="ignore")

    repo: str = Field(description="`owner/name`; it must exist.")
    token: str = Field(default="", description="A token that may write to it; left out: the worker's own.")
    repo_type: RepoType = "dataset"
    revision: str = Field(default="", max_length=200, description="A branch; left out: the repository's main one.")
    key_template: str = ""

    @field_validator("repo")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        if not REPO_NAME.fullmatch(value):
            raise ValueError(f"expected owner/name of a repository; got {value[:100]!r}")
        return value

    @field_validator("token")
    @classmethod
    def _is_a_token(cls, value: str) -> str:
        return checked(value, find_secret_problem)

    @field_validator("revision")
    @classmethod
    def _is_a_branch(cls, value: str) -> str:
        return checked(value, find_revision_problem)

    @field_validator("key_template")
    @classmethod
    def _makes_keys(cls, value: str) -> str:
        return check_template(value)


@dataclass(frozen=True, slots=True)
class HubTarget:
    """Repository for a request's outputs. An empty token: the operator's; empty `revision`: the default branch."""

    repo: str
    token: str = field(default="", repr=False)
    repo_type: RepoType = "dataset"
    revision: str = ""
    key_template: str = ""

    @staticmethod
    def of(asked: Mapping[str, Any]) -> HubTarget:
        """Return the target that a request's settings describe."""
        return HubTarget(**asked)

    def link(self, endpoint: str, key: str) -> str:
        """Return the address at which the hub gives the file out, to those who may read the repository."""
        revision = quote(self.revision or "main", safe="")
        return f"{endpoint}/{FOLDERS[self.repo_type]}{self.repo}/resolve/{revision}/{quote(key)}"


def find_hub_problem(asked: HubTarget, allowed_repos: tuple[str, ...], *, has_own_token: bool) -> Problem | None:
    """Return the reason why a request may not write to its repository, or None.

    The operator's token writes to the operator's repositories alone.
    """
    if asked.token:
        return None
    if asked.repo not in allowed_repos:
        message = "missing; the worker's own token writes to the repositories of HF_OUTPUT_REPOS alone"
        return Problem(message, field="input.hf.token", type="missing", allowed=sorted(allowed_repos))
    if not has_own_token:
        return Problem("missing; the worker has no HF_TOKEN of its own", field="input.hf.token", type="missing")
    return None


class HubUploader:
    """Commits to the hub that `access` describes, each with a deadline."""

    def __init__(self, access: Callable[[], HubAccess]) -> None:
        self._access = access

    @property
    def endpoint(self) -> str:
        return self._access().endpoint.rstrip("/")

    @property
    def has_own_token(self) -> bool:
        return bool(self._access().token.get_secret_value())

    async def upload(self, target: HubTarget, job_id: str, files: Mapping[str, Path], *, until: float) -> list[str]:
        """Commit files, by their paths in the repository, and return their links. Raises UploadFailed.

        `until` is a time of the event loop's clock.
        """
        token = SecretStr(target.token) if target.token else self._access().token
        endpoint = self.endpoint
        order = {
            "endpoint": endpoint,
            "token": token.get_secret_value(),
            "repo": target.repo,
            "repo_type": target.repo_type,
            "revision": target.revision,
            "message": f"Outputs of {job_id}",
            "files": {key: str(path) for key, path in files.items()},
        }
        try:
            async with asyncio.timeout_at(until):
                reason = await _commit(json.dumps(order).encode())
        except TimeoutError:
            reason = "the uploads of the job took longer than an hour"
        except OSError as error:
            reason = cause_of(error)
        if reason:
            message = f"the files were not uploaded to {target.repo_type} {target.repo}: {reason}"
            raise UploadFailed(message, reason=reason)
        return [target.link(endpoint, key) for key in files]


class HubOutputTarget:
    """The OutputTarget of the hub: a repository of a request, to which one job commits at a time.

    Two commits at once to one branch, and the hub refuses one. `allowed_repos` are the operator's repositories.
    """

    def __init__(self, uploader: HubUploader, allowed_repos: tuple[str, ...]) -> None:
        self._uploader = uploader
        self._allowed_repos = allowed_repos
        self._committing = asyncio.Lock()

    def check(self, asked: JsonObject) -> Problem | None:
        """Check a request's repository. Raises RequestRejected for one that it may not write to."""
        has_own_token = self._uploader.has_own_token
        problem = find_hub_problem(HubTarget.of(asked), self._allowed_repos, has_own_token=has_own_token)
        if problem is not None:
            raise RequestRejected([problem])
        return None

    def describe(self, asked: JsonObject) -> Destination | None:
        """Return the destination of files, None for a request without a repository."""
        return Destination(self._uploader.endpoint, HubTarget.of(asked).key_template) if asked else None

    async def deliver(
        self, asked: JsonObject, job_id: str, files: Sequence[SentFile], *, seconds: float
    ) -> list[str | WorkerError]:
        """Commit files within some seconds; return the link of each, or why there is no commit."""
        paths = {file.key: file.path for file in files}
        async with self._committing:
            until = asyncio.get_running_loop().time() + seconds
            try:
                return [*await self._uploader.upload(HubTarget.of(asked), job_id, paths, until=until)]
            except WorkerError as failed:
                return [failed for _ in files]


async def _commit(order: bytes) -> str:
    """Run the child process; return why there is no commit, or an empty text."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(*COMMAND, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL)
    try:
        answer, _ = await child.communicate(order)
    finally:
        if child.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
    try:
        return str(json.loads(answer)["reason"])
    except (ValueError, KeyError, TypeError):
        return f"the upload ended with status {child.returncode}"
