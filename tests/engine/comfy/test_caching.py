"""ComfyUI's names by which packs keep results outside of the engine."""

from __future__ import annotations

from pathlib import Path

from tests.engine.comfy.loading import SHOW, loaded, write_pack

PACK = """
    from comfy_api.latest import Caching, ComfyExtension, io
    from comfy_execution.cache_provider import CacheContext, unregister_cache_provider

    KEPT = {}
    CALLS = []

    class Keeper(Caching.CacheProvider):
        async def on_lookup(self, context: Caching.CacheContext):
            assert isinstance(context, CacheContext)
            return KEPT.get(context.cache_key_hash)

        async def on_store(self, context, value: Caching.CacheValue):
            KEPT[context.cache_key_hash] = Caching.CacheValue(outputs=value.outputs, ui=value.ui)

    class Count(io.ComfyNode):
        @classmethod
        def define_schema(cls):
            return io.Schema(node_id="Count", inputs=[io.Int.Input("value")], outputs=[io.String.Output()])

        @classmethod
        def execute(cls, value):
            CALLS.append(value)
            return io.NodeOutput(f"{len(CALLS)} of {value}")

    class Extension(ComfyExtension):
        async def on_load(self):
            await Caching.register_provider(Keeper())
            other = Keeper()
            Caching.register_provider(other)
            unregister_cache_provider(other)

        async def get_node_list(self):
            return [Count]

    async def comfy_entrypoint():
        return Extension()
"""


def test_a_packs_provider_is_asked_for_results_and_gets_them(tmp_path: Path) -> None:
    write_pack(tmp_path, "keeping.py", PACK)
    write_pack(tmp_path, "show.py", SHOW)
    with loaded(tmp_path) as made:
        assert len(made.engine.cache_providers) == 1
        assert made.shown("Count", value=1) == "1 of 1"
        assert made.shown("Count", value=2) == "2 of 2"  # the engine's own cache forgets the first
        assert made.shown("Count", value=1) == "1 of 1"
