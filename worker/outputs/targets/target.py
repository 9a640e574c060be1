"""OutputTarget: a kind of store for outputs, and the choice among those that the worker has.

A request names a store by a field of its own (`s3`, `put`, `hf`) with settings, called `asked` here. A further kind is
one file in this folder, with the form of its settings, its line in `worker/app/external_io.py` and its field in
`StoresInput`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from darkroom.worker.errors import DeliveryFailed, InputRejected, Problem, RequestRejected, WorkerError
from darkroom.worker.guard.safe_address import AddressGuard
from darkroom.worker.json.values import JsonObject

UPLOADS_AT_ONCE: Final = 4
NOTHING_ASKED: Final[JsonObject] = {}


class UploadFailed(DeliveryFailed):
    """A rejected upload. `fields`: `reason` is the store's error code or the kind of failure."""

    code = "upload_failed"


@dataclass(frozen=True, slots=True)
class Destination:
    """Destination of a job's files within a target.

    Uploads with one `queue` wait for their turn together. An empty `key_template` stands for the worker's. A `problem`
    is a reason why nothing is sent, which was none when the request was checked.
    """

    queue: str
    key_template: str = ""
    problem: str = ""


@dataclass(frozen=True, slots=True)
class SentFile:
    """A file to deliver, and its key in the store."""

    path: Path
    key: str
    media_type: str


class OutputTarget(Protocol):
    """A kind of store. `asked` are a request's settings of it, empty for a request that names no store."""

    def check(self, asked: JsonObject) -> Problem | None:
        """Check a request's settings; return what is doubtful about them and no reason to refuse it, or None.

        Raises RequestRejected.
        """
        ...

    def describe(self, asked: JsonObject) -> Destination | None:
        """Return the destination of files, None where they stay on the worker."""
        ...

    async def deliver(
        self, asked: JsonObject, job_id: str, files: Sequence[SentFile], *, seconds: float
    ) -> list[str | WorkerError]:
        """Upload files within some seconds; return the link of each, or why it was not uploaded."""
        ...


@dataclass(frozen=True, slots=True)
class Chosen:
    """The target of a job's files, with the request's settings of it."""

    target: OutputTarget
    asked: JsonObject
    destination: Destination


class OutputTargets:
    """All kinds of stores of the worker, by the field of a request that names them."""

    def __init__(self, targets: Mapping[str, OutputTarget]) -> None:
        self._targets = dict(targets)

    def check(self, stores: Mapping[str, JsonObject]) -> list[Problem]:
        """Check the stores that a request names; return what is doubtful about them. Raises RequestRejected."""
        found = (self._targets[name].check(asked) for name, asked in stores.items())
        return [problem for problem in found if problem is not None]

    def choose(self, stores: Mapping[str, JsonObject]) -> Chosen | None:
        """Return the target of a request that names these stores, else the operator's; None where files stay here."""
        asked = {name: stores[name] for name in self._targets if stores.get(name)}
        for name, given in (asked or dict.fromkeys(self._targets, NOTHING_ASKED)).items():
            destination = self._targets[name].describe(given)
            if destination is not None:
                return Chosen(self._targets[name], given, destination)
        return None


async def send_each(files: Sequence[SentFile], send: Callable[[SentFile], Awaitable[str]]) -> list[str | WorkerError]:
    """Send files one by one, a few at once; return what `send` returns for each, or raises of ours."""
    at_once = asyncio.Semaphore(UPLOADS_AT_ONCE)

    async def outcome(file: SentFile) -> str | WorkerError:
        try:
            async with at_once:
                return await send(file)
        except WorkerError as failed:
            return failed

    return await asyncio.gather(*map(outcome, files))


def check_address(addresses: AddressGuard, url: str, field: str) -> None:
    """Check an address of a request. Raises RequestRejected for one that the worker sends nothing to."""
    try:
        addresses.check_form(url)
    except InputRejected as error:
        raise RequestRejected([Problem(error.message, field=field, type=error.code)]) from None
