"""One evaluation of a network that waits to be made, with others of its kind or by itself."""

from __future__ import annotations

from collections.abc import Hashable

import torch

from darkroom.engine.diffusion.options import Network, OptionDict
from darkroom.engine.runtime.turns import Parked


class Evaluation(Parked):
    """Evaluation of `model.apply_model(x, sigmas, **arguments)`, of one run.

    `x` [B, C, h, w], `sigmas` [B]. Evaluations of one `kind` may be made together; those of the same `measured_as` take
    as long, and the bits of their rows depend on the batch's size in the same way. Both are of evaluations with as many
    rows. `tolerance` is the error that a batch may add, 0.0 for none. Afterwards it has a `result` like `x`, or an
    `error`; neither if it was taken back.
    """

    def __init__(
        self, kind: Hashable, patcher: Network, model: Network, x: torch.Tensor, sigmas: torch.Tensor,
        arguments: OptionDict, measured_as: Hashable = None, tolerance: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.kind = (kind, x.shape[0])
        self.measured_as = (kind if measured_as is None else measured_as, x.shape[0])
        self.tolerance = tolerance
        self.patcher = patcher
        self.model = model
        self.x = x
        self.sigmas = sigmas
        self.arguments = arguments
        self.result: torch.Tensor | None = None
        self.error: BaseException | None = None

    @property
    def num_rows(self) -> int:
        return self.x.shape[0]
