"""Results that packs keep outside: asked for where the engine has none, told what nodes gave, and never in the way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest

from darkroom.engine.engine import Engine, RunRequest, RunResult
from darkroom.engine.events import Event, NodesCached
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.basic.loops import NODES as LOOPS
from darkroom.engine.nodes.library.basic.primitives import preview_any
from darkroom.engine.nodes.markers import Socket
from darkroom.engine.nodes.widgets import Int
from darkroom.engine.runtime.cache.providers import CacheContext, CacheProvider, CacheValue
from darkroom.engine.settings import EngineSettings
from tests.contract.graph.declared import node as of_class


class Kept(CacheProvider):
    """A provider that keeps results in memory, without those of `without`."""

    def __init__(self, *without: str) -> None:
        self.values: dict[str, CacheValue] = {}
        self.asked: list[str] = []
        self.prompts: list[str] = []
        self.without = without

    async def on_lookup(self, context: CacheContext) -> CacheValue | None:
        self.asked.append(context.node_id)
        return self.values.get(context.cache_key_hash)

    async def on_store(self, context: CacheContext, value: CacheValue) -> None:
        await asyncio.sleep(0.01)
        assert len(context.cache_key_hash) == 64
        self.values[context.cache_key_hash] = value

    def should_cache(self, context: CacheContext, value: CacheValue | None = None) -> bool:
        return context.class_type not in self.without

    def on_prompt_start(self, prompt_id: str) -> None:
        self.prompts.append(f"start {prompt_id}")

    def on_prompt_end(self, prompt_id: str) -> None:
        self.prompts.append(f"end {prompt_id}")


class Failing(Kept):
    async def on_lookup(self, context: CacheContext) -> CacheValue | None:
        raise RuntimeError("no lookup")

    async def on_store(self, context: CacheContext, value: CacheValue) -> None:
        raise RuntimeError("no store")

    def on_prompt_start(self, prompt_id: str) -> None:
        raise RuntimeError("no start")


class Caching:
    def __init__(self, base: Path) -> None:
        self.doubled: list[int] = []

        @node("Double", category="test")
        def double(context: NodeContext, *, value: Annotated[int, Int()]) -> Annotated[int, Socket("INT")]:
            self.doubled.append(value)
            return value * 2

        self.engine = Engine(EngineSettings(base_directory=base, cpu=True), (double, preview_any, *LOOPS))

    def run(self, prompt: dict[str, Any], told: list[Event] | None = None) -> RunResult:
        self.doubled.clear()
        events: list[Event] = [] if told is None else told
        checked = self.engine.check(prompt)
        request = RunRequest("p", checked.prompt, checked.outputs, {})
        return self.engine.submit(request, events.append).result(timeout=60)


DOUBLED = {
    "1": of_class("Double", value=4),
    "2": of_class("Double", value=["1", 0]),
    "3": of_class("PreviewAny", source=["2", 0]),
}
OTHER = {"3": of_class("PreviewAny", source=["9", 0]), "9": of_class("Double", value=0)}


@pytest.fixture
def caching(tmp_path: Path) -> Iterator[Caching]:
    made = Caching(tmp_path)
    yield made
    made.engine.close()


def test_what_a_provider_has_does_not_run_nor_what_it_needs(caching: Caching) -> None:
    kept = Kept("PreviewAny")
    caching.engine.cache_providers.register(kept)
    assert caching.run(DOUBLED).outputs["3"]["text"] == ("16",)
    assert caching.doubled == [4, 8] and len(kept.values) == 2
    caching.run(OTHER)  # the engine's own cache keeps the last prompt alone
    told: list[Event] = []
    assert caching.run(DOUBLED, told).outputs["3"]["text"] == ("16",)
    assert caching.doubled == []
    assert next(event.node_ids for event in told if isinstance(event, NodesCached)) == ["1", "2"]
    assert kept.prompts == ["start p", "end p"] * 3


def test_a_provider_fails_without_failing_the_run(caching: Caching, caplog: pytest.LogCaptureFixture) -> None:
    caching.engine.cache_providers.register(Failing())
    assert caching.run(DOUBLED).status == "success"
    assert "cache provider Failing failed" in caplog.text


@pytest.mark.parametrize("outputs", [None, [], [[1], [2]], [1], "ab"])
def test_what_is_no_result_of_that_node_is_passed_over(caching: Caching, outputs: Any) -> None:
    kept = Kept("PreviewAny")
    caching.engine.cache_providers.register(kept)
    caching.run(DOUBLED)
    for value in kept.values.values():
        value.outputs = outputs
    caching.run(OTHER)
    assert caching.run(DOUBLED).outputs["3"]["text"] == ("16",) and caching.doubled == [4, 8]


def test_iterations_of_a_loop_are_kept_too_where_they_may_be(caching: Caching) -> None:
    def looped(*, cached: bool) -> dict[str, Any]:
        simple = {"mode": "simple", "mode.num_iterations": 2, "cache_iterations": cached}
        return {
            "s": of_class("StartLoop", **simple),
            "a": of_class("Double", value=["s", 0]),
            "e": of_class("EndLoop", output_value=["a", 0], accumulate=True),
            "3": of_class("PreviewAny", source=["e", 0]),
        }

    kept = Kept("PreviewAny", "EndLoop")
    caching.engine.cache_providers.register(kept)
    for cached, doubled in ((False, [0, 1]), (True, [])):
        for _ in range(2):
            assert caching.run(looped(cached=cached)).outputs["3"]["text"] == ["0", "2"]
            caching.run(OTHER)
        assert caching.run(looped(cached=cached)).status == "success" and caching.doubled == doubled


def test_a_provider_that_left_is_not_asked(caching: Caching) -> None:
    kept = Kept()
    caching.engine.cache_providers.register(kept)
    caching.engine.cache_providers.register(kept)
    assert len(caching.engine.cache_providers) == 1
    caching.engine.cache_providers.unregister(kept)
    assert caching.run(DOUBLED).status == "success" and kept.asked == []
