"""Audio and 3D models in the gallery, model files by their images, what a run costs, and models that are fetched."""

from __future__ import annotations

import functools
import http.server
import io
import json
import struct
import threading
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from PIL import Image

from darkroom.engine.formats.safetensors_file import write_safetensors
from tests.browser.visitor import visitor
from tests.flow.running_worker import RunningWorker, running_worker

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

CORNERS = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], np.float32)
FACES = np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]], np.uint16)
LORA = "sub/painterly.safetensors"
VAE = "tiny.safetensors"


def write_tetrahedron(path: Path) -> None:
    """Write a red tetrahedron as GLB, indices of 16 bits."""
    binary = CORNERS.tobytes() + FACES.tobytes()
    description = {
        "asset": {"version": "2.0"},
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0, "translation": [5, 0, 0]}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": 1, "material": 0}]}],
        "materials": [{"pbrMetallicRoughness": {"baseColorFactor": [1, 0, 0, 1]}}],
        "accessors": [
            {"bufferView": 0, "componentType": 5126, "count": 4, "type": "VEC3", "min": [0, 0, 0], "max": [1, 1, 1]},
            {"bufferView": 1, "componentType": 5123, "count": 12, "type": "SCALAR"},
        ],
        "bufferViews": [
            {"buffer": 0, "byteOffset": 0, "byteLength": CORNERS.nbytes},
            {"buffer": 0, "byteOffset": CORNERS.nbytes, "byteLength": FACES.nbytes},
        ],
        "buffers": [{"byteLength": len(binary)}],
    }
    text = json.dumps(description).encode()
    text += b" " * (-len(text) % 4)
    chunks = struct.pack("<II", len(text), 0x4E4F534A) + text + struct.pack("<II", len(binary), 0x004E4942) + binary
    path.write_bytes(struct.pack("<III", 0x46546C67, 2, 12 + len(chunks)) + chunks)


def write_tone(path: Path) -> None:
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes((np.sin(np.arange(8000) / 8) * 20000).astype("<i2").tobytes())


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with a file of a model, by its address."""
    folder = tmp_path_factory.mktemp("files")
    write_safetensors(folder / VAE, {"weight": torch.zeros(1000)})
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/{VAE}"
        server.shutdown()


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory, files: str) -> Iterator[RunningWorker]:
    """A worker with inputs, a LoRA with an image, a price, and a manifest with a VAE that is not here."""
    base = tmp_path_factory.mktemp("stocked")
    (base / "input" / "3d").mkdir(parents=True)
    write_tetrahedron(base / "input" / "3d" / "solid.glb")
    write_tone(base / "input" / "tone.wav")
    lora = base / "models" / "loras" / LORA
    lora.parent.mkdir(parents=True)
    lora.write_bytes(b"")
    Image.new("RGB", (30, 30), (0, 200, 0)).save(lora.with_suffix(".png"))
    (base / "models.toml").write_text(f'[tiny]\nkind = "vae"\nsources = ["{files}"]\noptional = true\n')
    with running_worker(base, None, WORKER_PRICE_PER_HOUR="36") as worker:
        yield worker


def node(class_type: str, **inputs: Any) -> dict[str, Any]:
    return {"class_type": class_type, "inputs": inputs}


def draw(worker: RunningWorker, workflow: dict[str, Any]) -> dict[str, Any]:
    body = {"input": {"workflow_json": workflow, "output": {"thumbnail_size": 256}}}
    answer = worker.http.post("/generate/sync", json=body, timeout=120)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def reds(image: Locator) -> int:
    """Return how many pixels of an element on the page are red."""
    with Image.open(io.BytesIO(image.screenshot())) as shown:
        pixels = np.asarray(shown.convert("RGB")).astype(int)
    return int(((pixels[..., 0] > 60) & (pixels[..., 0] > 3 * pixels[..., 1])).sum())


def test_audio_has_its_waveform_and_plays(browser: Browser, stocked: RunningWorker) -> None:
    made = draw(
        stocked, {"1": node("LoadAudio", audio="tone.wav"), "2": node("SaveAudio", audio=["1", 0], filename_prefix="a")}
    )
    assert made["output"][0]["thumbnail"]["width"] == 256
    with visitor(browser) as guest:
        guest.page.goto(stocked.url)
        guest.wait_for(".card.done .sound img")
        assert guest.page.locator(".card.done .sound img").first.evaluate("image => image.naturalWidth") == 256
        played = "async (audio) => { audio.muted = true; await audio.play(); return audio.duration }"
        assert guest.page.locator(".card.done audio").first.evaluate(played) == pytest.approx(1, abs=0.1)
        guest.page.locator(".card.done .open").first.click()
        guest.wait_for("dialog[open] .stage .sound audio")
        assert float(guest.page.locator("dialog dt:text-is('Cost') + dd").inner_text()) > 0
        assert not guest.complaints


def test_a_3d_model_is_drawn_and_turned_by_keys(browser: Browser, stocked: RunningWorker) -> None:
    workflow = {
        "1": node("Load3DAdvanced", model_file="3d/solid.glb", viewport_state={}, width=64, height=64),
        "2": node("Save3DAdvanced", model_3d=["1", 0], filename_prefix="solid", viewport_state={}, width=64, height=64),
    }
    draw(stocked, workflow)
    with visitor(browser) as guest:
        page = guest.page
        page.emulate_media(reduced_motion="reduce")
        page.goto(stocked.url)
        guest.wait_for(".card.done .turntable img")
        assert reds(page.locator(".card.done .turntable img").first) > 500
        page.locator(".card.done", has=page.locator(".turntable")).locator(".open").first.click()
        canvas = page.locator("dialog[open] .turntable canvas")
        canvas.wait_for()
        first = canvas.evaluate("canvas => canvas.toDataURL()")
        assert reds(canvas) > 2000
        canvas.focus()
        page.keyboard.press("ArrowLeft")
        page.wait_for_timeout(300)
        assert canvas.evaluate("canvas => canvas.toDataURL()") != first
        assert page.locator("dialog[open] .turntable").count() == 1  # the key turned it and went to no other result
        assert not guest.complaints


def test_a_lora_is_chosen_by_its_image_and_a_missing_model_is_fetched(
    browser: Browser, stocked: RunningWorker, tmp_path: Path
) -> None:
    workflow = {
        "1": node("CheckpointLoaderSimple", ckpt_name="darkroom-emoji.safetensors"),
        "2": node("LoraLoaderModelOnly", model=["1", 0], lora_name="none.safetensors", strength_model=1.0),
        "3": node("VAELoader", vae_name=VAE),
        "4": node("EmptyLatentImage", width=64, height=64, batch_size=1),
        "5": node("VAEDecode", samples=["4", 0], vae=["3", 0]),
        "6": node("SaveImage", images=["5", 0], filename_prefix="a"),
        "7": node("CLIPTextEncode", clip=["1", 1], text="a red apple"),
        "8": node("PreviewAny", source=["2", 0]),
    }
    (tmp_path / "w.json").write_text(json.dumps(workflow))
    with visitor(browser, width=390) as guest:
        page = guest.page
        page.goto(stocked.url)
        page.select_option("#modifier", "A workflow file")
        page.set_input_files("#field-workflow", tmp_path / "w.json")
        guest.wait_for('[id="field-7.text"]')
        page.fill('[id="field-7.text"]', "a green pear")
        fetch = page.get_by_role("button", name="Fetch 1 file")
        fetch.wait_for()
        fetch.click()
        page.locator("#lacks li", has_text=VAE).wait_for(state="detached")
        assert page.input_value('[id="field-7.text"]') == "a green pear"
        assert (stocked.base / "models" / "vae" / VAE).is_file()
        if not page.get_by_role("button", name="Browse Lora").is_visible():
            page.locator("summary").first.click()
        page.get_by_role("button", name="Browse Lora").click()
        guest.wait_for("dialog[open] .file img")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        page.locator("dialog[open] .file", has_text="painterly").click()
        assert page.input_value('[id="field-2.lora_name"]') == LORA
        assert not guest.complaints
