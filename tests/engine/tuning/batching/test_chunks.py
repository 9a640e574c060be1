"""Layers whose bits depend on the rows of a batch are found, and computed in chunks."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from darkroom.engine.cancel import CancelToken
from darkroom.engine.diffusion.options import OptionDict
from darkroom.engine.runtime.turns import Turns
from darkroom.engine.tuning.batching.batcher import StepBatcher
from darkroom.engine.tuning.batching.chunks import in_chunks
from darkroom.engine.tuning.batching.evaluation import Evaluation
from darkroom.engine.tuning.batching.measure import varying_layers
from darkroom.engine.tuning.batching.widths import Widths


class Varying(nn.Linear):
    """Layer whose rows differ by the number of rows that are computed at once."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) + input.shape[0] * 1e-6


class Steady(nn.Linear):
    """Layer that computes each row by itself."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return torch.stack([row * self.weight[0, 0] for row in input])


class Model:
    """The members that a batch reads of a denoiser's model and of its MODEL."""

    current_patcher: Any = None

    def __init__(self) -> None:
        self.diffusion_model = nn.Sequential(Steady(3, 3), Varying(3, 3), Steady(3, 3)).requires_grad_(False)

    def apply_model(self, x: torch.Tensor, sigmas: torch.Tensor, **arguments: Any) -> torch.Tensor:
        out: torch.Tensor = self.diffusion_model(x)
        return out * sigmas[:, None]

    def memory_required(self, shape: object) -> int:
        return 0

    def free_bytes(self) -> int:
        return 1

    def begin_batch(self, shape: object, **beside: object) -> None: ...


def sample(model: Any, num_rows: int = 2) -> Evaluation:
    arguments: OptionDict = {"transformer_options": {}}
    return Evaluation("kind", model, model, torch.rand(num_rows, 3), torch.ones(num_rows), arguments)


def test_the_layer_that_varies_is_found_and_gives_the_same_bits_in_chunks() -> None:
    model = Model()
    names = varying_layers(sample(model), 2, 16, lambda: None)
    assert names == ("1",)
    x, network = torch.rand(8, 3), model.diffusion_model
    alone = network(x[2:4])
    assert not torch.equal(network(x)[2:4], alone)
    with in_chunks(network, names, 2):
        assert torch.equal(network(x)[2:4], alone)
    assert not torch.equal(network(x)[2:4], alone)


def test_a_network_that_fails_in_a_batch_has_no_layers_to_compute_in_chunks() -> None:
    model = Model()
    model.diffusion_model[2] = nn.Linear(4, 4)
    assert varying_layers(sample(model), 2, 16, lambda: None) == ()


def test_batches_draw_a_rows_bits_in_any_company_with_layers_in_chunks() -> None:
    model = Model()
    batcher = StepBatcher(Turns(lambda: lambda: None), 8, lambda: None)

    def all_of_the_first_kind(figures: Any, own_rows: int, tolerance: float) -> Any:
        bits = next(item.bits for item in figures if item.width == own_rows)
        return Widths(tuple(item.width for item in figures if item.bits == bits))

    batcher.choose = all_of_the_first_kind
    try:
        widths = batcher.widths_for(sample(model), CancelToken())
        assert widths.widths[0] == 2 and widths.widths[-1] == 16 and widths.layers == ("1",)
        evaluations = [sample(model) for _ in range(7)]
        alone = [model.diffusion_model(item.x) for item in evaluations]
        batcher.evaluate(evaluations)
        for item, expected in zip(evaluations, alone, strict=True):
            assert item.result is not None and torch.equal(item.result, expected)
    finally:
        batcher.close()
