"""The position at which a prompt's pooled output is taken, and embeddings of another size."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from darkroom.engine.layers.clip_text import ClipTextConfig, ClipTextModel
from darkroom.engine.text.clip_encoding import END_TOKEN, START_TOKEN, ClipEncoder, ClipEncoding
from darkroom.engine.text.clip_l import CLIP_L_ENCODING

CONFIG = ClipTextConfig(num_layers=2, width=8, heads=2, inner_width=16, num_positions=12)
ROWS = torch.rand(2, 8)


@pytest.fixture(scope="module")
def encoder() -> ClipEncoder:
    torch.manual_seed(0)
    return ClipEncoder(ClipTextModel(CONFIG), CLIP_L_ENCODING).requires_grad_(False)


@pytest.mark.parametrize(
    ("chunk", "place"),
    [
        ([START_TOKEN, 5, END_TOKEN], 2),
        ([START_TOKEN, 5, END_TOKEN, 6, 7], 2),  # an end token that the prompt spells out
        ([START_TOKEN, ROWS, 5, END_TOKEN], 4),
        ([START_TOKEN, 5, END_TOKEN, ROWS, 6], 4),  # embeddings count wherever they are
        ([START_TOKEN, 5, 6, 7], 11),  # no end at all
    ],
)
def test_the_pooled_output_is_taken_where_comfyui_takes_it(
    encoder: ClipEncoder, chunk: list[object], place: int
) -> None:
    num_rows = sum(token.shape[0] if isinstance(token, torch.Tensor) else 1 for token in chunk)
    filling = END_TOKEN if any(type(token) is int and token == END_TOKEN for token in chunk) else 8
    padded = [*chunk, *[filling] * (CONFIG.num_positions - num_rows)]
    conditioning, pooled = encoder.encode([padded], None, project_pooled=False)
    assert torch.equal(pooled[0], conditioning[0, place])


def test_an_embedding_of_another_width_is_left_out(encoder: ClipEncoder) -> None:
    tokens = [START_TOKEN, 5, END_TOKEN, *[END_TOKEN] * 8]
    plain, _ = encoder.encode([[*tokens, END_TOKEN]], None, project_pooled=False)
    with_other, _ = encoder.encode([[START_TOKEN, 5, torch.rand(1, 6), *tokens[2:]]], None, project_pooled=False)
    assert torch.equal(plain, with_other)


@pytest.mark.parametrize(("kept", "layer_idx", "same_as"), [(4, -2, 2), (3, -2, 2), (3, -1, 2), (4, -1, 3), (3, -5, 2)])
def test_layers_are_counted_as_if_a_file_had_all_of_them(kept: int, layer_idx: int, same_as: int) -> None:
    torch.manual_seed(0)
    whole = ClipTextModel(replace(CONFIG, num_layers=4)).requires_grad_(False)
    part = ClipTextModel(replace(CONFIG, num_layers=kept)).requires_grad_(False)
    part.load_state_dict({name: whole.state_dict()[name] for name in part.state_dict()})
    encoding = ClipEncoding(slot="h", embedding_width=8, num_layers=4)
    chunk = [START_TOKEN, 5, *[END_TOKEN] * (CONFIG.num_positions - 2)]
    ours, _ = ClipEncoder(part, encoding).encode([chunk], layer_idx, project_pooled=False)
    theirs, _ = ClipEncoder(whole, encoding).encode([chunk], same_as - 4, project_pooled=False)
    assert torch.equal(ours, theirs)


def test_what_packs_leave_behind_a_weight_changes_nothing(encoder: ClipEncoder) -> None:
    pairs = [[(START_TOKEN, 1.0), (5, 1.5), *[(END_TOKEN, 1.0)] * (CONFIG.num_positions - 2)]]
    numbered = [[(*token, number, "kept") for number, token in enumerate(chunk)] for chunk in pairs]
    plain, longer = (
        encoder.encode_weighted(chunks, layer_idx=None, project_pooled=True).cond for chunks in (pairs, numbered)
    )
    assert torch.equal(plain, longer)
