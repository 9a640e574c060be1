"""Words of an engine about a fetched file name the file as the request did."""

from __future__ import annotations

from typing import Any

from darkroom.worker.errors import Problem, RequestRejected
from darkroom.worker.jobs.asked_names import in_asked_names

NAME = f"darkroom/{'a1' * 32}.mp4"


def prompt(value: str) -> dict[str, Any]:
    return {"1": {"class_type": "LoadVideo", "inputs": {"file": value}}}


def refusal(asked: str, sent: str = NAME) -> RequestRejected:
    problem = Problem(f"Invalid video file: {NAME} (no video stream)", field="file", node_id="1")
    return in_asked_names(RequestRejected([problem], num_unlisted=2), prompt(asked), prompt(sent))


def test_an_address_is_named_without_its_query() -> None:
    found = refusal("https://user:key@example.com/clip.mp4?token=secret")
    assert found.problems[0].message == "Invalid video file: https://example.com/clip.mp4 (no video stream)"
    assert (found.problems[0].field, found.problems[0].node_id, found.num_unlisted) == ("file", "1", 2)
    assert "clip.mp4" in found.message and "secret" not in found.message


def test_data_of_the_request_is_named_as_such() -> None:
    for asked in ("data:video/mp4;base64,AAAA", f"upload:{'b2' * 32}.mp4"):
        assert "the file that came with the request (no" in refusal(asked).problems[0].message


def test_a_name_that_the_request_gave_itself_stays() -> None:
    assert NAME in refusal(NAME).problems[0].message
    assert NAME in refusal("other.mp4", "other.mp4").problems[0].message
