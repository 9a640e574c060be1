"""Node lists that a worker sends: taken only if they are what their digests say, and not too large."""

from __future__ import annotations

import gzip

import pytest
from pydantic import ValidationError

from darkroom.worker.gateway.workers import entries
from darkroom.worker.gateway.workers.entries import WorkerEntry, is_list_of
from darkroom.worker.sources.fleet_entries import NodeList


def test_a_list_has_its_own_digest_and_no_other() -> None:
    listed, other = NodeList.of({"A": {"output": []}}), NodeList.of({"B": {"output": []}})
    assert is_list_of(listed.id, listed.packed)
    assert not is_list_of(other.id, listed.packed)
    assert not is_list_of(listed.id, listed.packed + b"more") and not is_list_of(listed.id, listed.packed[:-5])
    assert not is_list_of(listed.id, b"") and not is_list_of(listed.id, b"no gzip")


def test_a_list_that_unpacks_to_more_than_allowed_is_read_no_further(monkeypatch: pytest.MonkeyPatch) -> None:
    large = {"A": {"text": "x" * 1000}}
    listed = NodeList.of(large)
    assert is_list_of(listed.id, listed.packed)
    monkeypatch.setattr(entries, "MAX_LIST_BYTES", 500)
    assert not is_list_of(listed.id, listed.packed)
    assert not is_list_of(listed.id, gzip.compress(bytes(10_000_000)))


def test_an_entry_has_the_name_of_its_token_and_numbers_in_their_ranges() -> None:
    given = {"nodes": "0" * 16, "speed": 2.5, "worker": "another", "is_last": True, "models": ["cat.safetensors"]}
    entry = WorkerEntry.model_validate(given)
    assert entry.lists == ["0" * 16] and b'"worker": "pod.1"' in entry.as_bytes("pod.1")
    assert b'"num_runs": 1' in entry.as_bytes("pod.1")
    assert b"is_last" not in entry.as_bytes("pod.1")
    for wrong in (
        {"speed": -1},
        {"wait_seconds": float("inf")},
        {"nodes": "../x"},
        {"models": ["x"] * 100},
        {"num_runs": 0},
    ):
        with pytest.raises(ValidationError):
            WorkerEntry.model_validate(given | wrong)
