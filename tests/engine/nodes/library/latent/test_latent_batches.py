"""Batches of latents joined, repeated and cut: each item keeps its noise and its mask."""

from __future__ import annotations

from typing import Any

import torch

from darkroom.engine.nodes.library.latent import latent_batches as nodes
from darkroom.engine.nodes.sockets import Latent

context: Any = None


def latent(batch: int, size: int = 8, **more: Any) -> Latent:
    result: Any = {"samples": torch.arange(float(batch)).reshape(-1, 1, 1, 1).expand(batch, 4, size, size), **more}
    typed: Latent = result
    return typed


def test_an_item_taken_from_a_batch_keeps_its_noise_and_mask() -> None:
    masks = torch.arange(2.0).reshape(2, 1, 1, 1).expand(2, 1, 64, 64)
    picked = nodes.latent_from_batch(context, samples=latent(4, noise_mask=masks), batch_index=2, length=9)
    assert picked["batch_index"] == [2, 3]
    assert picked["samples"][:, 0, 0, 0].tolist() == [2.0, 3.0]
    assert picked["noise_mask"][:, 0, 0, 0].tolist() == [0.0, 1.0]
    again = nodes.latent_from_batch(context, samples=picked, batch_index=1, length=1)
    assert again["batch_index"] == [3]


def test_copies_of_numbered_items_get_noise_of_their_own() -> None:
    repeated = nodes.repeat_latent_batch(context, samples=latent(2, batch_index=[4, 6]), amount=3)
    assert repeated["batch_index"] == [4, 6, 7, 9, 10, 12]
    assert repeated["samples"].shape[0] == 6
    assert "batch_index" not in nodes.repeat_latent_batch(context, samples=latent(2), amount=3)


def test_batches_are_joined_at_the_firsts_size_and_number_their_noise_each() -> None:
    joined = nodes.latent_batch(context, samples1=latent(2), samples2=latent(3, 16, batch_index=[5, 5, 5]))
    assert joined["samples"].shape == (5, 4, 8, 8)
    assert joined["batch_index"] == [0, 1, 5, 5, 5]


def test_the_noise_of_a_batch_is_that_of_its_first_item_or_of_each() -> None:
    given = latent(3, batch_index=[2, 4, 6])
    assert nodes.latent_batch_seed_behavior(context, samples=given, seed_behavior="fixed")["batch_index"] == [2, 2, 2]
    assert "batch_index" not in nodes.latent_batch_seed_behavior(context, samples=given, seed_behavior="random")
    assert given["batch_index"] == [2, 4, 6]


def rebatched(latents: list[Latent], size: int) -> list[Latent]:
    lists: Any = {"latents": latents, "batch_size": [size]}
    result: Any = nodes.rebatch_latents(context, **lists)
    typed: list[Latent] = result
    return typed


def test_rebatched_items_keep_the_noise_they_had() -> None:
    batches = rebatched([latent(3), latent(2), latent(1, batch_index=[9])], 4)
    assert [batch["batch_index"] for batch in batches] == [[0, 1, 2, 3], [4, 9]]
    assert all("noise_mask" not in batch for batch in batches)


def test_latents_of_different_sizes_do_not_share_a_batch() -> None:
    batches = rebatched([latent(1), latent(1, 16), latent(2, 16)], 2)
    assert [tuple(batch["samples"].shape[::2]) for batch in batches] == [(1, 8), (2, 16), (1, 16)]


def test_masks_go_with_their_items() -> None:
    batches = rebatched([latent(1), latent(1, noise_mask=torch.zeros(1, 1, 64, 64))], 2)
    assert batches[0]["noise_mask"][:, 0, 0, 0].tolist() == [1.0, 0.0]
