"""The choice of a store for the files of a job, and uploads to it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from darkroom.worker.errors import Problem, RequestRejected, WorkerError
from darkroom.worker.json.values import JsonObject
from darkroom.worker.outputs.targets.target import Destination, OutputTargets, SentFile, UploadFailed, send_each


class Shelf:
    """A store of our own; `is_own`: it takes files of requests that name none."""

    def __init__(self, *, is_own: bool = False) -> None:
        self._is_own = is_own

    def check(self, asked: JsonObject) -> Problem | None:
        if asked.get("board") == "none":
            raise RequestRejected([Problem("no such board", field="input.shelf.board")])
        return Problem("board: is full soon") if asked.get("board") == "full" else None

    def describe(self, asked: JsonObject) -> Destination | None:
        return Destination("shelf", str(asked.get("key_template", ""))) if asked or self._is_own else None

    async def deliver(
        self, asked: JsonObject, job_id: str, files: Sequence[SentFile], *, seconds: float
    ) -> list[str | WorkerError]:
        return [f"shelf://{job_id}/{file.key}" for file in files]


def test_a_request_that_names_a_store_gets_it_and_one_that_names_none_the_operators() -> None:
    shelf, own = Shelf(), Shelf(is_own=True)
    targets = OutputTargets({"shelf": shelf, "own": own})
    chosen = targets.choose({"shelf": {"board": "a", "key_template": "x"}})
    assert chosen is not None and chosen.target is shelf and chosen.destination == Destination("shelf", "x")
    operators = targets.choose({})
    assert operators is not None and operators.target is own
    assert OutputTargets({"shelf": shelf}).choose({}) is None


def test_a_named_store_without_a_destination_is_not_replaced_by_the_operators() -> None:
    class Closed(Shelf):
        def describe(self, asked: JsonObject) -> Destination | None:
            return None

    assert OutputTargets({"closed": Closed(), "own": Shelf(is_own=True)}).choose({"closed": {"board": "a"}}) is None


def test_a_check_returns_doubts_and_raises_refusals() -> None:
    targets = OutputTargets({"shelf": Shelf()})
    assert targets.check({"shelf": {"board": "a"}}) == []
    assert [doubt.message for doubt in targets.check({"shelf": {"board": "full"}})] == ["board: is full soon"]
    with pytest.raises(RequestRejected):
        targets.check({"shelf": {"board": "none"}})


async def test_a_file_that_fails_does_not_fail_the_others(tmp_path: Path) -> None:
    async def send(file: SentFile) -> str:
        if file.key == "b":
            raise UploadFailed("b was not uploaded", reason="full")
        return f"link/{file.key}"

    first, failed, last = await send_each([SentFile(tmp_path, key, "image/png") for key in "abc"], send)
    assert (first, last) == ("link/a", "link/c") and isinstance(failed, UploadFailed)
