"""A conditioning that is saved comes back as it was; other files and values are refused by name."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from darkroom.engine.errors import BadModelFile
from darkroom.engine.formats.safetensors_file import write_safetensors
from darkroom.engine.nodes.library.conditioning.conditioning_files import conditioning_loader, save_conditioning
from tests.engine.nodes.small_store import node_context, small_store

TOKENS = torch.arange(6.0).reshape(1, 2, 3)
OPTIONS: dict[str, Any] = {
    "pooled_output": torch.ones(1, 4, dtype=torch.bfloat16),
    "reference_latents": [torch.full((1, 2), float(index)) for index in range(11)],
    "guidance": 3.5,
    "width": 1024,
    "is_even": True,
    "label": "so",
}


@pytest.fixture
def models(tmp_path: Path) -> Path:
    (tmp_path / "embeddings").mkdir()
    return tmp_path


def loaded(models: Path, name: str) -> Any:
    return conditioning_loader(node_context(small_store(models)), conditioning_name=name)


def test_an_entry_comes_back_with_its_options(models: Path) -> None:
    context = node_context(small_store(models), models)
    given = [[TOKENS, {**OPTIONS, "unset": None}]]
    assert save_conditioning(context, conditioning=given, filename_prefix="embeddings/mine").result == (given,)
    context.files.join()
    ((tokens, options),) = loaded(models, "mine_00001_.safetensors")
    assert torch.equal(tokens, TOKENS)
    assert options.keys() == OPTIONS.keys()
    assert options["pooled_output"].dtype == torch.bfloat16
    assert [float(item[0, 0]) for item in options["reference_latents"]] == list(range(11)), "by number, not by name"
    rest = {name: value for name, value in options.items() if not isinstance(value, torch.Tensor | list)}
    assert rest == {"guidance": 3.5, "width": 1024, "is_even": True, "label": "so"}


def test_any_file_with_such_a_tensor_is_one(models: Path) -> None:
    pooled = torch.zeros(1, 4)
    write_safetensors(models / "embeddings" / "a.safetensors", {"conditioning": TOKENS, "pooled_output": pooled})
    ((tokens, options),) = loaded(models, "a.safetensors")
    assert torch.equal(tokens, TOKENS)
    assert options.keys() == {"pooled_output"}


@pytest.mark.parametrize(
    ("tensors", "metadata", "fault"),
    [
        ({"emb_params": TOKENS}, {}, "tensors emb_params"),
        ({"conditioning": TOKENS[0]}, {}, "'conditioning' of torch.float32 [2, 3]"),
        ({"conditioning": TOKENS.long()}, {}, "'conditioning' of torch.int64 [1, 2, 3]"),
        ({"conditioning": TOKENS}, {"conditioning_options": "{"}, "conditioning_options that is not JSON"),
        ({"conditioning": TOKENS}, {"conditioning_options": "[" * 100_000}, "conditioning_options that is not JSON"),
        (
            {"conditioning": TOKENS},
            {"conditioning_options": json.dumps({"hooks": [1]})},
            "conditioning_options that is no numbers and texts by name",
        ),
    ],
)
def test_other_files_are_refused_by_what_they_have(
    models: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str], fault: str
) -> None:
    write_safetensors(models / "embeddings" / "a.safetensors", tensors, metadata)
    with pytest.raises(BadModelFile, match=re.escape(fault)):
        loaded(models, "a.safetensors")


def test_what_no_file_holds_is_not_saved(models: Path) -> None:
    context = node_context(small_store(models), models)
    with pytest.raises(ValueError, match="'control' is in no file; got object"):
        save_conditioning(context, conditioning=[[TOKENS, {"control": object()}]])
    with pytest.raises(ValueError, match="a file has one entry; got 2"):
        save_conditioning(context, conditioning=[[TOKENS, {}], [TOKENS, {}]])
    assert not (models / "conditioning").exists()
