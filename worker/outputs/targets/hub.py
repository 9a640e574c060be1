"""Uploads to a repository of the Hugging Face hub, all files of a job as one commit.

The hub refuses a commit that another one has overtaken and counts commits by the hour, so a commit for each file would
not do. The hub's own library runs in a child process: it blocks, and a job's end or deadline ends it with its
connections. The token goes there on standard input and is in no argument, log or error.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args
from urllib.parse import quote

from pydantic import SecretStr

from worker.errors import Problem
from worker.guard.network_errors import cause_of
from worker.outputs.targets.s3 import UploadFailed
from worker.settings.environment import HubAccess

RepoType = Literal["dataset", "model", "space"]
REPO_TYPES: tuple[RepoType, ...] = get_args(RepoType)
FOLDERS: Final = {"dataset": "datasets/", "model": "", "space": "spaces/"}
"""Prefix of a repository's name in an address."""

COMMAND: Final = (sys.executable, "-m", "darkroom.run", "worker.outputs.targets.hub_commit")


@dataclass(frozen=True, slots=True)
class HubTarget:
    """Repository for a request's outputs. An empty token: the operator's; empty `revision`: the default branch."""

    repo: str
    token: str = field(default="", repr=False)
    repo_type: RepoType = "dataset"
    revision: str = ""
    key_template: str = ""

    @staticmethod
    def of(asked: Mapping[str, Any] | None) -> HubTarget | None:
        """Return the target that a request's settings describe; None without any."""
        return HubTarget(**asked) if asked else None

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
            reason = "the uploads of the job took longer than S3_UPLOAD_TIMEOUT"
        except OSError as error:
            reason = cause_of(error)
        if reason:
            message = f"the files were not uploaded to {target.repo_type} {target.repo}: {reason}"
            raise UploadFailed(message, reason=reason)
        return [target.link(endpoint, key) for key in files]


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
