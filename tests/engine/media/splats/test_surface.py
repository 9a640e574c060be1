"""Meshes of splats."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from darkroom.engine.cancel import CancelToken
from darkroom.engine.media.splats.density import density_of, shape_of
from darkroom.engine.media.splats.splat import Splat, harmonics_of
from darkroom.engine.media.splats.surface import SurfaceOptions, smoothed, surface_of
from tests.engine.media.surfaces.shapes import tensor

OPTIONS = SurfaceOptions(64, 5, 0, 0.4, 50, 0.02, 2.0)


def ball(count: int = 4000) -> Splat:
    """Return an even shell of Gaussians at distance 1, red above and blue below, in a world with y downwards."""
    height = torch.linspace(-1, 1, count)
    turn = torch.arange(count) * math.pi * (3 - math.sqrt(5))  # a spiral
    radius = (1 - height.square()).sqrt()
    positions = torch.stack([radius * turn.cos(), height, radius * turn.sin()], dim=1)
    colors = torch.where(positions[:, 1:2] < 0, torch.tensor([1.0, 0, 0]), torch.tensor([0.0, 0, 1]))
    rotations = torch.tensor([1.0, 0, 0, 0]).expand(count, 4)
    return Splat(positions, torch.full((count, 3), 0.05), rotations, torch.ones(count, 1), harmonics_of(colors))


def test_density_of_one_gaussian_peaks_at_its_middle_with_its_color() -> None:
    one = Splat(*(getattr(ball(), name)[:1] for name in ("positions", "scales", "rotations", "opacities", "sh")))
    density = density_of(one, 16, 8, 1.0, CancelToken())
    peak = torch.tensor(torch.unravel_index(density.values.argmax(), density.values.shape))
    position = density.origin + peak * density.step
    assert (position - one.positions[0]).abs().max() <= density.step / 2 + 1e-6
    assert density.values.shape == shape_of(one, 16)
    color = density.colors[tuple(peak)].float() / density.weights[tuple(peak)]
    assert color.tolist() == pytest.approx(one.colors()[0].tolist(), abs=1e-2)


def test_shell_becomes_one_closed_surface_upright_in_its_colors() -> None:
    mesh = surface_of(ball(), OPTIONS, CancelToken())
    distances = tensor(mesh.vertices).norm(dim=1)
    assert float(distances.min()) > 0.95  # the inner wall is left out
    assert mesh.unlit
    upper = tensor(mesh.vertices)[:, 1] > 0.3
    assert tensor(mesh.vertex_colors)[upper].mean(0).tolist() == pytest.approx([1, 0, 0], abs=0.02)


def test_small_parts_are_left_out_unless_all_are_kept() -> None:
    far = ball()
    far.positions[:3] = torch.tensor([3.0, 0, 0])
    without = surface_of(far, OPTIONS, CancelToken())
    whole = surface_of(far, replace(OPTIONS, least_vertices=0), CancelToken())
    assert tensor(without.vertices)[:, 0].max() < 2
    assert tensor(whole.vertices)[:, 0].max() > 2


def test_splat_that_is_too_faint_has_an_empty_mesh() -> None:
    mesh = surface_of(replace(ball(), opacities=torch.full((4000, 1), 0.01)), OPTIONS, CancelToken())
    assert tensor(mesh.vertices).shape == tensor(mesh.vertex_colors).shape == (0, 3)


def test_smoothing_flattens_noise_and_keeps_the_size() -> None:
    mesh = surface_of(ball(), OPTIONS, CancelToken())
    even, faces = tensor(mesh.vertices), tensor(mesh.faces)
    assert even.norm(dim=1).std() < 0.01
    noisy = even * (1 + 0.01 * torch.randn(len(even), 1, generator=torch.Generator().manual_seed(1)))
    calm = torch.from_numpy(smoothed(noisy.numpy(), faces.numpy(), 10))
    assert calm.norm(dim=1).std() < noisy.norm(dim=1).std() / 1.5
    assert float(calm.norm(dim=1).mean()) == pytest.approx(float(noisy.norm(dim=1).mean()), rel=0.01)
