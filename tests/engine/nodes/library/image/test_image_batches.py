"""Taking images out of a batch and cutting batches anew."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.nodes.library.image import image_batches

context: Any = None


def test_batches_are_cut_anew_in_their_order() -> None:
    images: Any = [torch.full((3, 2, 2, 3), 0.0), torch.full((2, 2, 2, 3), 1.0)]
    batches: Any = image_batches.rebatch_images(context, images=images, batch_size=[2])
    assert [batch.shape[0] for batch in batches] == [2, 2, 1]
    assert [batch[:, 0, 0, 0].tolist() for batch in batches] == [[0.0, 0.0], [0.0, 1.0], [1.0]]


def test_an_index_past_the_batch_gives_its_last_image() -> None:
    image = torch.arange(3.0).reshape(3, 1, 1, 1)
    picked = image_batches.image_from_batch(context, image=image, batch_index=7, length=4)
    assert picked.flatten().tolist() == [2.0]
