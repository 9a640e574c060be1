"""Which of a machine's checkpoints the benchmark takes for SD1.5."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from worker.qualification.facts import (
    FIRST_CONVOLUTION,
    FIRST_CROSS_ATTENTION,
    base_channels,
    checkpoint_names,
    look_into,
)


def written(path: Path, **shapes: list[int]) -> Path:
    names = {"convolution": FIRST_CONVOLUTION, "attention": FIRST_CROSS_ATTENTION}
    header = json.dumps({names[name]: {"shape": shape} for name, shape in shapes.items()}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    return path


def test_the_width_is_read_from_a_checkpoint_of_sd15s_kind(tmp_path: Path) -> None:
    assert base_channels(written(tmp_path / "full", convolution=[320, 4, 3, 3], attention=[320, 768])) == 320
    assert base_channels(written(tmp_path / "narrow", convolution=[32, 4, 3, 3], attention=[32, 768])) == 32


def test_sdxl_and_sd2_have_as_many_channels_and_are_not_taken_for_it(tmp_path: Path) -> None:
    sdxl = written(tmp_path / "sdxl", convolution=[320, 4, 3, 3])  # no attention in its first blocks
    sd2 = written(tmp_path / "sd2", convolution=[320, 4, 3, 3], attention=[320, 1024])
    assert [look_into(path, path.name).base_channels for path in (sdxl, sd2)] == [0, 0]
    assert look_into(tmp_path / "elsewhere", "elsewhere").base_channels is None


def test_names_are_found_in_both_forms_of_a_choice() -> None:
    forms: tuple[list[Any], ...] = ([["a"], {}], ["COMBO", {"options": ["a"]}])
    for told in forms:
        info = {"CheckpointLoaderSimple": {"input": {"required": {"ckpt_name": told}}}}
        assert checkpoint_names(info) == ["a"]
    assert checkpoint_names({}) == []
