"""Noise from a seed: the starting noise and that of each step."""

from __future__ import annotations

import torch

from darkroom.engine.diffusion.noise import default_noise_sampler, prepare_noise

LEVEL = torch.tensor(1.0)


def test_fresh_noise_on_a_cpu_is_that_of_the_next_seed() -> None:
    x = torch.zeros(1, 4, 8, 8)
    first = default_noise_sampler(x, seed=7)(LEVEL, LEVEL)
    assert torch.equal(first, prepare_noise(x, 8))
    assert not torch.equal(first, prepare_noise(x, 7))  # which the sampling began with


def test_each_step_has_noise_of_its_own_and_the_seed_repeats_it() -> None:
    x = torch.zeros(1, 4, 8, 8)
    draw, again = default_noise_sampler(x, seed=7), default_noise_sampler(x, seed=7)
    steps = [draw(LEVEL, LEVEL) for _ in range(2)]
    assert not torch.equal(*steps)
    assert torch.equal(steps[0], again(LEVEL, LEVEL)) and torch.equal(steps[1], again(LEVEL, LEVEL))
