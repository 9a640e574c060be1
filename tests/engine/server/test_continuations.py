"""Prompts that a pack's node queues to go on with its own, as batches of a long video."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp.test_utils import TestClient, TestServer

from darkroom.engine.comfy.packs.loader import MEMORY_FILE
from darkroom.engine.comfy.packs.pack_memory import PackMemory, fingerprint
from darkroom.engine.server.app import create_app
from darkroom.engine.server.engine_start import EngineStart
from darkroom.engine.settings import CacheSettings, EngineSettings
from tests.engine.comfy.loading import write_pack

PACK = """
    import server

    queue = server.PromptServer.instance.prompt_queue

    class Counter:
        '''State that counts the parts, as a manager of batches does; the prompt that begins resets it.'''
        INPUT_TYPES = classmethod(lambda cls: {
            "required": {"parts": ("INT", {"default": 3})},
            "hidden": {"prompt": "PROMPT", "unique_id": "UNIQUE_ID"},
        })
        RETURN_TYPES = ("COUNTER",)
        FUNCTION = "count"

        def count(self, parts, prompt, unique_id):
            if not prompt[unique_id]["inputs"].get("requeue", 0):
                self.seen = []
            self.parts = parts
            return (self,)

    class Part:
        INPUT_TYPES = classmethod(lambda cls: {"required": {"counter": ("COUNTER",), "fails": ("BOOLEAN", {})}})
        RETURN_TYPES = ()
        FUNCTION = "part"
        OUTPUT_NODE = True

        def part(self, counter, fails):
            [(number, prompt_id, prompt, extra_data, outputs)] = queue.currently_running.values()
            counter.seen.append(prompt_id)
            if len(counter.seen) == counter.parts:
                return {"ui": {"seen": list(counter.seen)}}
            prompt = prompt.copy()
            for node in prompt.values():
                if node["class_type"] == "Counter":
                    node["inputs"]["requeue"] = node["inputs"].get("requeue", 0) + 1
            number = -server.PromptServer.instance.number
            server.PromptServer.instance.number += 1
            queue.put((number, str(server.uuid.uuid4()), prompt, extra_data, outputs, {}))
            if fails:
                raise ValueError("a part that fails")
            return {"ui": {"unfinished_batch": [True]}}

    class Wrong:
        INPUT_TYPES = classmethod(lambda cls: {"required": {"item": (["short", "no prompt", "extra"],)}})
        RETURN_TYPES = ()
        FUNCTION = "put"
        OUTPUT_NODE = True

        def put(self, item):
            prompt = {"1": {"class_type": "Wrong", "inputs": {"item": "short"}}}
            queue.put({
                "short": (0, "x"),
                "no prompt": (0, "x", {"1": {"inputs": {}}}, {}, []),
                "extra": (0, "x", prompt, None, []),
            }[item])

    NODE_CLASS_MAPPINGS = {"Counter": Counter, "Part": Part, "Wrong": Wrong}
"""


def counted(parts: int = 3, *, fails: bool = False) -> dict[str, Any]:
    return {
        "1": {"class_type": "Counter", "inputs": {"parts": parts}},
        "2": {"class_type": "Part", "inputs": {"counter": ["1", 0], "fails": fails}},
        "3": {"class_type": "EmptyImage", "inputs": {"width": 8, "height": 8, "batch_size": 1, "color": 0}},
        "4": {"class_type": "PreviewImage", "inputs": {"images": ["3", 0]}},
    }


class Packed:
    def __init__(self, client: Any) -> None:
        self.client = client

    async def run(self, prompt: dict[str, Any], prompt_id: str) -> dict[str, Any]:
        """Return the history once nothing waits or runs; that of earlier prompts is cleared."""
        await self.client.post("/history", json={"clear": True})
        answer = await self.client.post("/prompt", json={"prompt": prompt, "prompt_id": prompt_id, "client_id": "me"})
        assert answer.status == 200, await answer.text()
        async with asyncio.timeout(60):
            while True:
                state = await (await self.client.get("/prompt")).json()  # first: a prompt may end between the two
                history: dict[str, Any] = await (await self.client.get("/history")).json()
                if history and state["exec_info"]["queue_remaining"] == 0:
                    return history
                await asyncio.sleep(0.01)


@asynccontextmanager
async def packed(base: Path, **flags: Any) -> AsyncIterator[Packed]:
    pack = write_pack(base, "parts.py", PACK)
    memory = PackMemory(base / MEMORY_FILE)  # known to work: its trial takes seconds
    memory.begin(pack, fingerprint(pack))
    memory.end(pack, fingerprint(pack), is_good=True)
    settings = EngineSettings(base_directory=base, cpu=True, **flags)
    for folder in (settings.input_path, settings.output_path, settings.temp_path):
        folder.mkdir(parents=True)
    failures: list[BaseException] = []
    start = EngineStart(settings, failures.append)
    async with TestClient(TestServer(create_app(settings, start))) as client:
        yield Packed(client)
    assert failures == []


async def test_a_prompt_goes_on_in_others_that_its_node_queues(tmp_path: Path) -> None:
    async with packed(tmp_path) as server:
        for name in ("first", "again"):
            history = await server.run(counted(3), name)
            ids, entries = list(history), list(history.values())
            assert ids[0] == name and len(ids) == 3
            assert [entry["outputs"]["2"] for entry in entries] == [
                {"unfinished_batch": [True]},
                {"unfinished_batch": [True]},
                {"seen": ids},
            ]
            assert [entry.get("continued_by") for entry in entries] == [[ids[1]], [ids[2]], None]
            assert [entry["prompt"][2]["1"]["inputs"].get("requeue") for entry in entries] == [None, 1, 2]
            assert all(entry["prompt"][3]["client_id"] == "me" for entry in entries)
            cached = dict(entries[1]["status"]["messages"])["execution_cached"]["nodes"]
            assert sorted(cached) == ["3", "4"]

        failed = await server.run(counted(3, fails=True), "failing")
        assert list(failed) == ["failing"] and failed["failing"]["status"]["status_str"] == "error"
        assert "continued_by" not in failed["failing"]

        for item, words in (("short", "no item"), ("no prompt", "class_type"), ("extra", "extra_data and outputs")):
            refused = await server.run({"1": {"class_type": "Wrong", "inputs": {"item": item}}}, "wrong")
            assert words in dict(refused["wrong"]["status"]["messages"])["execution_error"]["exception_message"]
        assert len(await server.run(counted(2), "next")) == 2


async def test_prompts_beside_each_other_go_on_with_the_state_of_each(tmp_path: Path) -> None:
    """And results are not taken for those of an earlier prompt's parts, though the cache keeps them for long."""
    async with packed(tmp_path, max_concurrent_runs=2, cache=CacheSettings("lru", 100)) as server:
        for number in range(4):
            names = [f"{name}{number}" for name in "abc"]
            for name in names[:2]:
                await server.client.post("/prompt", json={"prompt": counted(4), "prompt_id": name})
            history = await server.run(counted(4), names[2])
            seen = {entry["outputs"]["2"].get("seen", ("",))[0]: entry["outputs"]["2"] for entry in history.values()}
            assert len(set(seen[names[2]]["seen"])) == 4
            assert all(len(shown["seen"]) == 4 for shown in seen.values() if "seen" in shown)
