"""Routes of ComfyUI's web interface: its files, what its user stores, what packs bring, the log."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from darkroom.engine.server.front_end import FrontEndMissing, find_front_end
from tests.engine.server.conftest import Server, serving

PACK = """
NODE_CLASS_MAPPINGS = {}
WEB_DIRECTORY = "./web"
"""


def write_files(files: dict[Path, str]) -> None:
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
async def shown(tmp_path: Path) -> AsyncIterator[Server]:
    """A server with an interface of three files."""
    interface = tmp_path / "interface"
    write_files(
        {
            interface / "index.html": "<title>interface</title>",
            interface / "assets" / "main.js": "import '../scripts/app.js'",
            interface / "assets" / "favicon.ico": "icon",
            interface / "extensions" / "core" / "widgets.js": "export {}",
            tmp_path / "secret.txt": "nobody's business",
        }
    )
    async with serving(tmp_path, front_end=True, front_end_root=interface) as server:
        await server.get("/extensions")  # packs are there
        yield server


@pytest.fixture
def good_pack(tmp_path: Path) -> None:
    """A pack that brings everything a pack can; the server tries it in a process of its own, which takes seconds."""
    pack = tmp_path / "custom_nodes" / "good_pack"
    write_files(
        {
            pack / "__init__.py": PACK,
            pack / "web" / "shiny.js": "export {}",
            pack / "example_workflows" / "first.json": '{"nodes": []}',
            pack / "subgraphs" / "Sharpen.json": '{"definitions": {}}',
            pack / "locales" / "de" / "main.json": '{"g": {"hello": "hallo"}}',
            pack / "locales" / "de" / "nodeDefs.json": '{"Good": {"display_name": "Gut"}}',
        }
    )


async def text_of(server: Server, path: str) -> str:
    response = await server.client.get(path)
    assert response.status == 200, path
    text: str = await response.text()
    return text


async def test_the_interface_is_served_and_nothing_beside_it(good_pack: None, shown: Server) -> None:
    assert "interface" in await text_of(shown, "/")
    assert "scripts/app.js" in await text_of(shown, "/assets/main.js")
    assert await text_of(shown, "/favicon.ico") == "icon"
    assert await text_of(shown, "/user.css") == ""
    assert await text_of(shown, "/extensions/core/widgets.js") == "export {}"
    assert await shown.get("/extensions") == ["/extensions/good_pack/shiny.js"]
    for path in ("/assets/..%2f..%2fsecret.txt", "/..%2fsecret.txt", "/extensions/core/..%2f..%2findex.html", "/no.js"):
        assert (await shown.client.get(path)).status == 404, path


async def test_templates_are_served_of_every_package_and_images_that_are_not_there_are_plain(shown: Server) -> None:
    pytest.importorskip("comfyui_workflow_templates_json", reason="comfyui-workflow-templates-json is not installed")
    assert [entry["templates"] for entry in await shown.get("/templates/index.json")]
    assert (await shown.get("/templates/flux_schnell.json"))["nodes"]
    response = await shown.client.get("/templates/flux_schnell-1.webp")
    assert response.status == 200 and response.content_type in ("image/svg+xml", "image/webp")
    for path in ("/templates/none.json", "/templates/..%2f__init__.py"):
        assert (await shown.client.get(path)).status == 404, path


async def test_settings_are_kept_one_by_one_and_together(shown: Server) -> None:
    assert await shown.get("/api/settings") == {}
    changes = [shown.client.post(f"/api/settings/Comfy.Setting{number}", json=number) for number in range(10)]
    assert {reply.status for reply in await asyncio.gather(*changes)} == {200}
    await shown.post("/settings", theme="dark")
    assert await shown.get("/api/settings") == {f"Comfy.Setting{number}": number for number in range(10)} | {
        "theme": "dark"
    }
    assert await shown.get("/settings/theme") == "dark"
    assert await shown.get("/settings/none") is None
    assert (await shown.client.post("/settings/a", data=b"{")).status == 400


async def test_a_workflow_is_saved_listed_moved_and_deleted(shown: Server) -> None:
    assert await shown.get("/userdata?dir=workflows&recurse=true&full_info=true") == []
    assert await shown.get("/v2/userdata") == []
    place = "/userdata/workflows%2Fmine%2Fa.json"
    stored = await (await shown.client.post(f"{place}?full_info=true", data=b'{"nodes": []}')).json()
    assert (stored["path"], stored["size"]) == ("workflows/mine/a.json", 13)
    assert (await shown.client.post(f"{place}?overwrite=false", data=b"{}")).status == 409
    assert await shown.get(place) == {"nodes": []}
    (entry,) = await shown.get("/userdata?dir=workflows&recurse=true&full_info=true")
    assert (entry["path"], entry["modified"]) == ("mine/a.json", stored["modified"])
    assert await shown.get("/userdata?dir=workflows&recurse=true&split=true") == [["mine/a.json", "mine", "a.json"]]
    assert await shown.get("/userdata?dir=workflows") == []
    (folder,) = await shown.get("/v2/userdata?path=workflows")
    assert (folder["type"], folder["path"]) == ("directory", "workflows/mine")
    moved = await shown.client.post(f"{place}/move/workflows%2Fb.json")
    assert await moved.json() == "workflows/b.json"
    assert (await shown.client.delete("/userdata/workflows%2Fb.json")).status == 204
    assert (await shown.client.delete("/userdata/workflows%2Fb.json")).status == 404


async def test_names_outside_of_the_users_folder_are_refused(shown: Server) -> None:
    for method, path, status in [
        ("GET", "/userdata", 400),
        ("GET", "/userdata?dir=../..", 403),
        ("GET", "/v2/userdata?path=../..", 400),
        ("GET", "/v2/userdata?path=none", 404),
        ("GET", "/userdata/..%2F..%2Fsecret.txt", 403),
        ("GET", "/userdata/workflows%2Fnone.json", 404),
        ("POST", "/userdata/..%2F..%2Fevil.json", 403),
        ("POST", "/userdata/none.json/move/b.json", 404),
        ("POST", "/users", 403),
        ("GET", "/userdata/comfy.templates.json", 200),
    ]:
        assert (await shown.client.request(method, path)).status == status, (method, path)


async def test_packs_bring_translations_examples_and_blueprints(good_pack: None, shown: Server) -> None:
    german = {"g": {"hello": "hallo"}, "nodeDefs": {"Good": {"display_name": "Gut"}}}
    assert await shown.get("/api/i18n") == {"de": german}
    assert await shown.get("/api/workflow_templates") == {"good_pack": ["first"]}
    assert await shown.get("/api/workflow_templates/good_pack/first.json") == {"nodes": []}
    assert (await shown.client.get("/workflow_templates/good_pack/..%2f__init__.py")).status == 404
    ((key, about),) = (await shown.get("/api/global_subgraphs")).items()
    assert about == {
        "source": "custom_node",
        "name": "Sharpen",
        "info": {"node_pack": "custom_nodes.good_pack"},
    }
    assert json.loads((await shown.get(f"/global_subgraphs/{key}"))["data"]) == {"definitions": {}}


async def test_the_log_is_shown_and_followed(shown: Server) -> None:
    socket = await shown.client.ws_connect("/ws?clientId=terminal")
    logging.getLogger("engine.test").warning("before")
    entries = (await shown.get("/internal/logs/raw"))["entries"]
    assert entries[-1]["m"].endswith("engine.test: before\n")
    follow: dict[str, Any] = {"clientId": "terminal", "enabled": True}
    assert (await shown.client.patch("/internal/logs/subscribe", json=follow)).status == 200
    logging.getLogger("engine.test").warning("after")
    async with asyncio.timeout(60):
        while True:
            message = await socket.receive_json()
            if message["type"] == "logs":
                break
    assert message["data"]["entries"][0]["m"].endswith("engine.test: after\n")
    assert (await shown.client.patch("/internal/logs/subscribe", json={**follow, "enabled": False})).status == 200


def test_without_its_files_the_start_says_what_to_install(tmp_path: Path) -> None:
    with pytest.raises(FrontEndMissing, match=r"index\.html"):
        find_front_end(tmp_path)
