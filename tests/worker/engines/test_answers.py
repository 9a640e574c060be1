"""Answers of engines: the texts that they may hold."""

from __future__ import annotations

import json

import pytest

from darkroom.worker.engines.answers import parse
from darkroom.worker.errors import EngineAnswerInvalid


@pytest.mark.parametrize("text", ["\U0001f600", "a\\ud800", "\\\\ud83d", "plain"])
def test_texts_are_read(text: str) -> None:
    assert parse("GET /x", json.dumps({"a": text}).encode()) == {"a": text}


@pytest.mark.parametrize("text", ["\ud800", "a\udc00b", "\U0001f600\ud83d"])
def test_half_a_surrogate_pair_which_nothing_can_write_is_an_invalid_answer(text: str) -> None:
    with pytest.raises(EngineAnswerInvalid, match="GET /x.*half a surrogate pair"):
        parse("GET /x", json.dumps({"a": text}).encode())
