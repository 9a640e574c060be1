"""Repeated blocks of a network compiled with `torch.compile`, in the background.

No step waits for the compiler: blocks run as they are while a thread compiles them for the forms that it has seen, and
all compiled ones take their place together before an evaluation begins. Regional compilation:
https://docs.pytorch.org/tutorials/recipes/regional_compilation.html.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from darkroom.engine.diffusion.compilation import missing_compiler
from darkroom.engine.tuning.block_arguments import NotPlain, form_of, plain_arguments
from darkroom.engine.tuning.compiled_forms import CompiledForms, Form
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.repeated_blocks import repeated_blocks
from darkroom.engine.tuning.strategies.cuda_graph import HARMLESS_OPTIONS
from darkroom.engine.tuning.strategy import (
    Evaluation,
    MachineFacts,
    SamplingUse,
    Strategy,
    Undo,
    custom_code,
    has_own_forward,
    offloaded,
    replace_forwards,
)


class CompiledBlocks(Strategy):
    """Blocks compiled in the background."""

    name = "compiled_blocks"
    quality = Quality.SAME
    about = "repeated blocks are compiled in the background and take their place when they are ready"
    is_size_sensitive = True
    # Their functions would be compiled anew.
    conflicts = frozenset(
        {
            "prompt_cache",
            "fused_qkv",
            "fused_geglu",
            "fused_rotary",
            "fused_modulation",
            "fused_activations",
            "nhwc_group_norm",
            "winograd_convolutions",
        }
    )

    def __init__(self, forms: CompiledForms) -> None:
        self.forms = forms

    def missing(self, machine: MachineFacts) -> str | None:
        return missing_compiler("inductor", machine.device_type)

    def unfit(self, use: SamplingUse) -> str | None:
        found = custom_code(use) or offloaded(use)
        if found is not None:
            return found
        if self.forms.failure is not None:
            return self.forms.failure
        return None if _blocks(use) else "the network has no repeated blocks that can be compiled"

    def apply(self, use: SamplingUse) -> Undo:
        blocks = _blocks(use)
        state = _Swap(self.forms, use.evaluation, blocks)
        undo = replace_forwards([(block, state.forward_of(block)) for block in blocks])
        hook = use.network.register_forward_pre_hook(lambda network, arguments: state.begin_evaluation())

        def undo_all() -> None:
            hook.remove()
            undo()

        return undo_all

    def settle(self, seconds: float) -> str | None:
        return self.forms.settle(seconds)

    def close(self) -> None:
        self.forms.close()


def _blocks(use: SamplingUse) -> list[nn.Module]:
    return [block for block in repeated_blocks(use.network) if _is_plain(block)]


def _is_plain(block: nn.Module) -> bool:
    """Return True where nothing has replaced or hooked a part of a block, and its weights need no cast.

    Hooks of the block itself run outside of its function: one of each block of a video network ends a cancelled run.
    """
    parts = [module for module in block.modules() if module is not block]
    return not (
        has_own_forward(block)
        or any(has_own_forward(part) or part._forward_pre_hooks or part._forward_hooks for part in parts)
        or any(weight.is_floating_point() and weight.itemsize == 1 for weight in block.parameters())
    )


class _Swap:
    """The forms whose compiled code is used in the evaluation that runs."""

    def __init__(self, forms: CompiledForms, evaluation: Evaluation, blocks: list[nn.Module]) -> None:
        self._forms = forms
        self._evaluation = evaluation
        self._kinds = frozenset(forms.kind_of(block) for block in blocks)
        self._seen: frozenset[Form] | None = None
        self._in_use: frozenset[Form] = frozenset()

    def begin_evaluation(self) -> None:
        ready = self._forms.ready
        if ready is not self._seen:
            self._seen, self._in_use = ready, frozenset(form for form in ready if form.kind in self._kinds)
        self._evaluation.num_compiled = len(self._in_use)  # of this network: others change no graph of it

    def forward_of(self, block: nn.Module) -> Callable[..., torch.Tensor]:
        kind, plain = self._forms.kind_of(block), type(block).forward

        def forward(*positional: Any, **named: Any) -> Any:
            try:
                arguments = plain_arguments(positional, named, HARMLESS_OPTIONS)
                form = Form(kind, form_of(arguments))
            except NotPlain:
                return plain(block, *positional, **named)
            if form in self._in_use:
                return self._forms.function(form)(block, *arguments)
            self._forms.ask(form, block, arguments)
            return plain(block, *positional, **named)

        return forward
