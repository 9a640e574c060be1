"""The prompt that is tried after memory ran out: tiles instead of whole images."""

from __future__ import annotations

from darkroom.worker.engines.low_memory_retry import tiled_prompt

TILED = {"input": {"required": {"samples": ["LATENT"], "tile_size": ["INT", {"default": 512}], "overlap": ["INT", {}]}}}
PROMPT = {
    "1": {"class_type": "VAEDecode", "inputs": {"samples": ["3", 0], "vae": ["4", 2]}},
    "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0]}},
}


def test_what_takes_an_image_whole_takes_it_in_tiles_where_the_engine_can() -> None:
    spared = tiled_prompt(PROMPT, {"VAEDecodeTiled": TILED})
    expected = {"class_type": "VAEDecodeTiled", "inputs": {"samples": ["3", 0], "vae": ["4", 2], "tile_size": 512}}
    assert spared == {**PROMPT, "1": expected}
    assert PROMPT["1"]["class_type"] == "VAEDecode"


def test_an_engine_without_tiles_gets_the_prompt_as_it_is() -> None:
    assert tiled_prompt(PROMPT, {}) == PROMPT
