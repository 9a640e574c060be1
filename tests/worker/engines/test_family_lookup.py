"""Families of an engine's files: asked for as little as possible, and kept for a while."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from darkroom.contract.graph.prompt_graph import FAMILY_KIND, ModelFile
from darkroom.worker.engines.family_lookup import MAX_KEPT, TTL_SECONDS, FamilyLookup
from darkroom.worker.engines.http import Reply
from darkroom.worker.errors import EngineUnreachable
from tests.worker.engines.test_families import LARGE, PLAIN, described


class Engine:
    """An engine of two families that counts what it is asked."""

    def __init__(self, has_families: bool = True) -> None:
        self.files = {"plain.safetensors": "plain", "large & more.safetensors": "large", "odd.safetensors": None}
        self.has_text: dict[str, bool] = {}
        self.has_families = has_families
        self.is_up = True
        self.asked: list[str] = []
        self.now = 0.0
        self.lookup = FamilyLookup(self.ask, lambda: self.now)

    async def ask(self, path: str) -> Reply:
        if not self.is_up:
            raise EngineUnreachable("Cannot connect to the engine")
        self.asked.append(path)
        if not self.has_families:
            return Reply(404, b"404: Not Found")
        if path == "/api/v1/families":
            return Reply(200, json.dumps([described(PLAIN), described(LARGE, 10.0)]).encode())
        query = parse_qs(urlsplit(path).query)
        names = query.get("name", list(self.files) if query["kind"] == ["checkpoints"] else [])
        assert len(path) < 8000
        return Reply(
            200, json.dumps({"checkpoints": [self._item(name) for name in names if name in self.files]}).encode()
        )

    def _item(self, name: str) -> dict[str, Any]:
        told = {"name": name, "family": self.files[name], "scale": "full", "size_bytes": 7, "variant": ""}
        return told | ({"has_text": self.has_text[name]} if name in self.has_text else {})

    @property
    def num_file_questions(self) -> int:
        return sum(path.startswith("/api/v1/checkpoints") for path in self.asked)


def files(*names: str) -> list[ModelFile]:
    return [ModelFile("checkpoints", name) for name in names]


async def test_families_are_found_by_file_name() -> None:
    asked = files("plain.safetensors", "large & more.safetensors", "odd.safetensors", "missing.safetensors")
    plain, large, *_ = asked
    assert await Engine().lookup.of(asked) == {plain: PLAIN, large: LARGE}


async def test_a_checkpoint_is_said_to_have_no_text_encoders() -> None:
    engine, asked = Engine(), files("plain.safetensors", "large & more.safetensors")
    engine.has_text = {"plain.safetensors": False}
    found = await engine.lookup.of(asked)
    assert [found[file].default.has_text for file in asked] == [False, None]
    assert found[asked[0]].default.of_network() == {"has_text": False}


async def test_random_weights_name_their_family_themselves() -> None:
    engine = Engine()
    known, unknown = ModelFile(FAMILY_KIND, "large"), ModelFile(FAMILY_KIND, "huge")
    assert await engine.lookup.of([known, unknown]) == {known: LARGE}
    assert engine.num_file_questions == 0


async def test_an_answer_is_kept_for_a_while_and_then_asked_for_again() -> None:
    engine, asked = Engine(), files("plain.safetensors", "missing.safetensors")
    for _ in range(3):
        await engine.lookup.of(asked)
    assert engine.num_file_questions == 1
    engine.files["plain.safetensors"] = "large"  # replaced on disk
    engine.now += TTL_SECONDS + 1
    assert await engine.lookup.of(asked) == {asked[0]: LARGE}


async def test_an_engine_without_families_is_not_asked_about_files() -> None:
    engine = Engine(has_families=False)
    assert await engine.lookup.of(files("plain.safetensors")) == {}
    assert await engine.lookup.checkpoints() == () and await engine.lookup.by_checkpoint() == {}
    assert engine.asked == ["/api/v1/families"]


async def test_names_that_do_not_fit_one_request_count_as_unknown_and_spoil_nothing() -> None:
    asked = files("plain.safetensors", "x" * 100_000, *(f"{number}{'y' * 200}" for number in range(100)))
    assert await Engine().lookup.of(asked) == {asked[0]: PLAIN}


async def test_memory_is_bounded_whatever_names_are_asked_for() -> None:
    engine = Engine()
    for number in range(MAX_KEPT + 50):
        await engine.lookup.of(files(f"{number}.safetensors"))
    assert len(engine.lookup._names) <= MAX_KEPT


async def test_all_checkpoints_are_listed_with_their_families() -> None:
    engine = Engine()
    listed = {item.name: (item.family, item.scale, item.size_bytes) for item in await engine.lookup.checkpoints()}
    assert listed["plain.safetensors"] == ("plain", "full", 7) and listed["odd.safetensors"] == ("", "full", 7)
    assert (await engine.lookup.by_checkpoint())["odd.safetensors"] is None
    before = engine.num_file_questions
    await engine.lookup.of(files("plain.safetensors"))
    assert engine.num_file_questions == before


async def test_an_engine_that_is_gone_is_said_to_be() -> None:
    engine = Engine()
    engine.is_up = False
    with pytest.raises(EngineUnreachable):
        await engine.lookup.of(files("plain.safetensors"))


async def test_what_was_learned_of_all_files_is_remembered_while_the_engine_is_away() -> None:
    engine, asked = Engine(), files("plain.safetensors", "large & more.safetensors", "odd.safetensors")
    await engine.lookup.learn(["checkpoints"])
    engine.is_up, engine.now = False, 10 * TTL_SECONDS
    assert engine.lookup.remembered(asked) == {asked[0]: PLAIN, asked[1]: LARGE}
    with pytest.raises(EngineUnreachable):
        engine.lookup.remembered(files("added later.safetensors"))


async def test_a_network_that_the_engine_has_and_knows_no_family_of_is_refused() -> None:
    engine = Engine()
    asked = files("plain.safetensors", "odd.safetensors", "missing.safetensors")
    await engine.lookup.of(asked)
    assert [file.name for file in engine.lookup.refused(asked)] == ["odd.safetensors"]
    other = [ModelFile("vae", "odd.safetensors")]
    await engine.lookup.of(other)
    assert not engine.lookup.refused(other)
    foreign = Engine(has_families=False)
    await foreign.lookup.of(asked)
    assert not foreign.lookup.refused(asked)
