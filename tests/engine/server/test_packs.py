"""Packs of custom nodes on the server: their routes, messages, web files and what is told of them."""

from __future__ import annotations

from pathlib import Path

from aiohttp.test_utils import TestClient, TestServer
from PIL import Image

from darkroom.engine.comfy.host import HOST
from darkroom.engine.server.app import create_app
from darkroom.engine.server.engine_start import EngineStart
from darkroom.engine.server.packs import binary_message
from darkroom.engine.settings import EngineSettings
from tests.engine.comfy.loading import write_pack

PACK = """
    from aiohttp import web
    from server import PromptServer

    WEB_DIRECTORY = "web"
    NODE_CLASS_MAPPINGS = {}
    server = PromptServer.instance

    @server.routes.get("/mine/{name}")
    async def mine(request):
        server.send_sync("mine.asked", {"name": request.match_info["name"]})
        return web.json_response({"hello": request.match_info["name"]})

    async def other(request):
        return web.Response(text="from the application")

    server.app.router.add_get("/other", other)

    def changed(body):
        body["prompt"]["1"]["class_type"] = "Changed"
        return body

    server.add_on_prompt_handler(changed)
"""

BAD = "raise OSError('no such thing')"


async def test_a_pack_finds_routes_messages_web_files_and_handlers_working(tmp_path: Path) -> None:
    pack = write_pack(tmp_path, "mine", PACK)
    (tmp_path / "packs.toml").write_text('[mine]\nregistry = "mine"\n')
    write_pack(tmp_path, "bad.py", BAD)
    (pack / "web" / "deep").mkdir(parents=True)
    (pack / "web" / "deep" / "own.js").write_text("export {}")
    settings = EngineSettings(base_directory=tmp_path, cpu=True)
    failures: list[BaseException] = []
    start = EngineStart(settings, failures.append)
    try:
        async with TestClient(TestServer(create_app(settings, start))) as client:
            listed = await (await client.get("/api/v1/nodes")).json()
            assert [(item["name"], item["status"]) for item in listed["packs"]] == [
                ("bad", "failed"),
                ("mine", "loaded"),
            ]
            assert "no such thing" in listed["packs"][0]["error"]
            assert [(item["name"], item["state"]) for item in listed["versions"]] == [("mine", "not synced")]

            async with client.ws_connect("/ws?clientId=me") as socket:
                assert (await socket.receive_json())["type"] == "status"
                assert await (await client.get("/mine/you")).json() == {"hello": "you"}
                assert await socket.receive_json() == {"type": "mine.asked", "data": {"name": "you"}}
            assert await (await client.get("/api/mine/you")).json() == {"hello": "you"}
            assert await (await client.get("/other")).text() == "from the application"
            assert (await client.get("/nobodys")).status == 404

            assert await (await client.get("/extensions")).json() == ["/extensions/mine/deep/own.js"]
            assert await (await client.get("/extensions/mine/deep/own.js")).text() == "export {}"
            assert (await client.get("/extensions/mine/%2e%2e/__init__.py")).status == 404

            prompt = {"1": {"class_type": "Nothing", "inputs": {"a": 1}}}
            answer = await (await client.post("/prompt", json={"prompt": prompt})).json()
            assert "Changed" in str(answer["error"])
    finally:
        assert not HOST.is_set  # the engine is closed with the server
    assert failures == []


def test_images_for_clients_are_encoded_and_bytes_stay_as_they_are() -> None:
    assert binary_message(3, b"text") == b"\0\0\0\3text"
    encoded = binary_message(2, ("JPEG", Image.new("RGBA", (64, 32)), 16))
    assert encoded[:8] == b"\0\0\0\1\0\0\0\1"
    assert encoded[8:10] == b"\xff\xd8"
