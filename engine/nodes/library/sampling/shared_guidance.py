"""Guidance halves of a sampling on two engines: one computes the positive side of each step, the other the negative.

Both engines sample the same prompt in step, and exchange their halves at each evaluation of the network. The owner
computes a negative half itself that the helper has not begun; a helper that comes late takes what is there already,
until it has caught up. The idea is CFG parallelism of J. Fang et al., "xDiT", arXiv 2411.01738.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import torch

from contract.wire import GUIDANCE_HELP, SHARED_GUIDANCE
from engine.cancel import CancelToken
from engine.diffusion.wrappers import CALC_COND_BATCH
from engine.nodes.base import Flag, NodeContext, NodeOutput, Text, node
from engine.nodes.exchange import Exchange
from engine.nodes.sockets import LATENT, MODEL

KEY: Final = "darkroom_shared_guidance"
POSITIVE, NEGATIVE = 0, 1
OWNERS_WAIT_SECONDS: Final = 600.0  # of a helper for the owner, which cancels it when the prompt ends

Sides = Sequence[Any]


class GuidanceExchange:
    """Wrapper of one sampling's evaluations, at the owner or at its helper."""

    def __init__(self, exchange: Exchange, cancel: CancelToken, *, is_helper: bool) -> None:
        self._exchange = exchange
        self._cancel = cancel
        self._is_helper = is_helper
        self._number = -1
        self._slowest_seconds = 0.0

    def __call__(
        self, executor: Callable[..., list[torch.Tensor]], model: Any, conds: Sides, x: torch.Tensor, *rest: Any
    ) -> list[torch.Tensor]:
        """Return the denoised latents of both sides: one computed here, the other one as a rule elsewhere."""
        if len(conds) != 2 or any(side is None for side in conds):
            return executor(model, conds, x, *rest)
        self._number += 1

        def compute(side: int) -> torch.Tensor:
            self._cancel.check()
            began = time.monotonic()
            halves: list[Any] = [None, None]
            halves[side] = conds[side]
            found = executor(model, halves, x, *rest)[side]
            self._slowest_seconds = max(self._slowest_seconds, time.monotonic() - began)
            return found

        both = self._as_helper(compute) if self._is_helper else self._as_owner(compute)
        return [half.to(x.device) for half in both]

    def _as_owner(self, compute: Callable[[int], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        positive, negative = self._pieces()
        ours = compute(POSITIVE)
        self._exchange.put(positive, ours)
        if not self._exchange.claim(negative):
            theirs = self._exchange.wait_for(negative, self._slowest_seconds, self._cancel)
            if theirs is not None:
                return ours, theirs
        other = compute(NEGATIVE)
        self._exchange.put(negative, other)
        return ours, other

    def _as_helper(self, compute: Callable[[int], torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        positive, negative = self._pieces()
        if self._exchange.claim(negative):
            ours = compute(NEGATIVE)
            self._exchange.put(negative, ours)
        else:
            ours = self._from_owner(negative)
        return self._from_owner(positive), ours

    def _from_owner(self, piece: str) -> torch.Tensor:
        found = self._exchange.wait_for(piece, OWNERS_WAIT_SECONDS, self._cancel)
        if found is None:
            raise RuntimeError(f"the engine that shares its guidance did not bring {piece}")
        return found

    def _pieces(self) -> tuple[str, str]:
        return f"positive-{self._number}", f"negative-{self._number}"


@node(SHARED_GUIDANCE, display_name="Share Guidance", category="sampling", python_module="darkroom")
def shared_guidance(
    context: NodeContext, *, model: MODEL, exchange: Annotated[str, Text()], is_helper: Annotated[bool, Flag()] = False
) -> MODEL:
    """Have two engines compute one side of the guidance each, in the one sampling for which the model is used."""
    pieces = Exchange(context.files.folders.of("output"), exchange)
    if not is_helper:
        pieces.open()
    shared = model.clone()
    shared.add_wrapper_with_key(CALC_COND_BATCH, KEY, GuidanceExchange(pieces, context.cancel, is_helper=is_helper))
    return shared


@node(GUIDANCE_HELP, display_name="Help with Guidance", category="sampling", python_module="darkroom", is_output=True)
def guidance_help(context: NodeContext, *, samples: LATENT) -> NodeOutput:
    """End the prompt of an engine that only helps with another one's guidance."""
    return NodeOutput({})


NODES = (shared_guidance, guidance_help)
