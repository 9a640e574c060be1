"""SigLIP 2's embeddings of patches with a table of positions that follows the image's proportions."""

from __future__ import annotations

import torch

from darkroom.engine.layers.naflex import NaflexEmbeddings


def test_an_image_of_as_many_rows_and_columns_as_the_table_gets_it_as_it_is() -> None:
    torch.manual_seed(0)
    made = NaflexEmbeddings(hidden_size=6, patch_px=2, num_positions=9)
    pixels = torch.randn(2, 3, 6, 6)
    patches = pixels.unfold(2, 2, 2).unfold(3, 2, 2).permute(0, 2, 3, 4, 5, 1).reshape(2, 9, 12)  # channels innermost
    expected = made.patch_embedding(patches) + made.position_embedding.weight
    torch.testing.assert_close(made(pixels), expected)


def test_the_table_is_resized_to_rows_and_columns() -> None:
    made = NaflexEmbeddings(hidden_size=1, patch_px=2, num_positions=16)
    for weight in made.patch_embedding.parameters():
        torch.nn.init.zeros_(weight)
    made.position_embedding.weight.data = torch.arange(4.0).repeat(4)[:, None]  # grows along a row alone
    out = made(torch.zeros(1, 3, 4, 16))
    rows = out.reshape(2, 8)
    assert torch.equal(rows[0], rows[1]) and bool((rows[0].diff() >= 0).all()) and rows[0, 0] == 0 and rows[0, 7] == 3
