"""The parts of the training that the checkpoint's correctness hangs on, at the networks' own size and a few samples."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from darkroom.engine.diffusion.model_sampling import DiscreteSchedule
from darkroom.engine.layers.vae_kl import AutoencoderKl
from demo import carry
from demo.export import SCALE, fold_moments
from demo.fit import fit_last_layer
from demo.networks import RESTING_BLOCKS, VAE, carry_colours, rest_large_blocks
from demo.run import Budget, Course, load, rate_factor, save
from demo.train_diffusion import signal_shares


def small_images() -> torch.Tensor:
    torch.manual_seed(0)
    coarse = torch.rand(2, 3, 4, 4) * 2 - 1
    return torch.nn.functional.interpolate(coarse, size=(64, 64), mode="bilinear")


@torch.no_grad()
def test_training_starts_from_an_autoencoder_that_carries_colours() -> None:
    torch.manual_seed(0)
    vae, images = AutoencoderKl(VAE), small_images()
    carry_colours(vae)
    rest_large_blocks(vae)
    fit_last_layer(vae, [images], noise=0.0)
    error = (vae.decode(vae.encode(images)) - images).abs().mean()
    assert error < 0.25 * images.abs().mean()


@torch.no_grad()
def test_resting_blocks_add_nothing_when_they_are_computed_after_all() -> None:
    torch.manual_seed(0)
    resting, whole = AutoencoderKl(VAE), AutoencoderKl(VAE)
    rest_large_blocks(resting)
    whole.load_state_dict(resting.state_dict())
    assert not any(whole.state_dict()[f"{name}.conv2.weight"].any() for name in RESTING_BLOCKS)
    images = small_images()
    torch.testing.assert_close(whole.encode(images), resting.encode(images))


@torch.no_grad()
def test_folded_moments_give_latents_of_unit_deviation_and_the_same_image() -> None:
    torch.manual_seed(0)
    own, folded, images = AutoencoderKl(VAE), AutoencoderKl(VAE), small_images()
    latents = own.encode(images)
    mean, deviation = latents.mean((0, 2, 3)), latents.std((0, 2, 3))
    folded.load_state_dict(fold_moments(own.state_dict(), mean, deviation))
    stored = folded.encode(images)
    torch.testing.assert_close((stored * SCALE).std((0, 2, 3)), torch.ones(4), atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(folded.decode(stored), own.decode(latents), atol=1e-3, rtol=1e-3)


def test_the_schedule_is_the_engine_s() -> None:
    shares = signal_shares()
    sigmas = ((1 - shares) / shares).sqrt()
    torch.testing.assert_close(sigmas, DiscreteSchedule().sigmas.float(), rtol=1e-4, atol=1e-5)


def test_a_budget_goes_on_where_the_last_slice_ended(tmp_path: Path) -> None:
    save(tmp_path / "state.pt", {"used_seconds": 90.0})
    state = load(tmp_path / "state.pt")
    assert state is not None
    budget = Budget(100.0, slice_seconds=5.0, used_before_seconds=state["used_seconds"])
    assert 0.9 <= budget.share < 0.95 and not budget.is_spent
    assert rate_factor(1000, budget.share, 100) < 0.1 < rate_factor(1000, 0.1, 100)
    assert load(tmp_path / "nothing.pt") is None


def test_a_training_that_was_cut_off_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    def begin(path: Path, seed: int) -> tuple[torch.nn.Linear, torch.optim.AdamW, Course]:
        torch.manual_seed(seed)
        network = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(network.parameters(), lr=0.1)
        return network, optimizer, Course(path, network, optimizer, Budget(1e9, 1e9))

    def take_a_step(network: torch.nn.Linear, optimizer: torch.optim.AdamW, course: Course) -> None:
        course.set_rate(0.1, 10)
        optimizer.zero_grad()
        network(torch.ones(3)).square().sum().backward()
        optimizer.step()
        course.follow(0.9)
        course.step += 1

    whole, cut = begin(tmp_path / "whole.pt", seed=0), begin(tmp_path / "cut.pt", seed=0)
    for _ in range(4):
        take_a_step(*whole)
    for _ in range(2):
        take_a_step(*cut)
    cut[2].save()
    again = begin(tmp_path / "cut.pt", seed=1)
    for _ in range(2):
        take_a_step(*again)
    assert again[2].step == 4
    torch.testing.assert_close(again[0].state_dict(), whole[0].state_dict())
    torch.testing.assert_close(again[2].average, whole[2].average)


def test_a_file_cut_into_parts_comes_together_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(carry, "PART_BYTES", 1000)
    path = tmp_path / "state.pt"
    content = bytes(range(256)) * 10
    path.write_bytes(content)
    parts = carry.split(path)
    assert len(parts) == 3 and all(part.stat().st_size <= 1000 for part in parts)
    path.unlink()
    carry.join(path)
    assert path.read_bytes() == content
