"""The node that makes the attention of a model sparse."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

import torch

from darkroom.engine.diffusion.options import Options
from darkroom.engine.diffusion.sparse_schedule import SparseSchedule, block_ranges
from darkroom.engine.families.minimax_h3.layers import Attention, Rotation
from darkroom.engine.families.minimax_h3.nodes.block_functions import Arguments, BlockFunction, Function, set_in_blocks
from darkroom.engine.families.minimax_h3.sparse_attention import Method, Sinks, SparseBlocks
from darkroom.engine.families.minimax_h3.transformer import MiniMaxH3Transformer
from darkroom.engine.log_context import report_warning
from darkroom.engine.models.patching.sparse_override import SparseOverride
from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.markers import Out
from darkroom.engine.nodes.parameters import DynamicChoice, Field
from darkroom.engine.nodes.sockets import MODEL
from darkroom.engine.nodes.widgets import Combo, Flag, Float, Int, Text

OVERRIDE = "optimized_attention_override"
ADAPTIVE = "sol-attn"
SHARE = Field("keep_percent", Float(min=0.5, max=95.0, step=0.5), 10.0)
METHODS = (
    (ADAPTIVE, (Field("tau", Float(min=0.0, max=4.0, step=0.05), 1.3),)),
    (Method.IN_ORDER.value, (SHARE,)),
    (Method.CUBES.value, (SHARE,)),
)
Percent = Annotated[float, Float(min=0.0, max=1.0, step=0.01)]

log = logging.getLogger(__name__)


class SparseBlock(BlockFunction):
    """A function in place of a block, whose attention is sparse where the schedule of `blocks` says so."""

    def __init__(self, blocks: SparseBlocks, index: int, previous: Function | None = None) -> None:
        super().__init__(index, previous)
        self._blocks = blocks

    def __call__(self, args: Arguments, extra: Arguments) -> dict[str, torch.Tensor]:
        """Return the block's result for its arguments."""
        tokens: torch.Tensor = args["img"]
        if not self._blocks.schedule.is_sparse(args["transformer_options"], tokens.shape[1], self.index):
            return self.inner(args, extra)
        tiles = self._blocks.tiles(args["layout"], tokens.device)

        def attend(layer: Attention, x: torch.Tensor, rotation: Rotation, options: Options | None) -> torch.Tensor:
            return self._blocks.attend(layer, x, rotation, tiles)

        return self.inner({**args, "attention": attend}, extra)


@node(
    "BlockSparseAttention",
    display_name="Model Sparse Attention",
    category="model/patch",
    python_module="comfy_extras.nodes_sparse_attention",
    experimental=True,
    search_aliases=["Block Sparse Attention"],
    advanced=("dense_blocks", "min_tokens", "extra_tokens", "sink_conditioning", "verbose"),
)
def block_sparse_attention(
    context: NodeContext,
    *,
    model: MODEL,
    selection: Annotated[Mapping[str, Any], DynamicChoice(fields=METHODS, extra={"display_name": "method"})],
    start_percent: Percent = 0.2,
    end_percent: Percent = 1.0,
    dense_blocks: Annotated[str, Text(multiline=False)] = "",
    min_tokens: Annotated[int, Int(min=0, max=1 << 20, step=512)] = 12288,
    extra_tokens: Annotated[int, Int(min=0, max=256, step=64)] = 256,
    sink_conditioning: Annotated[str, Combo(tuple(item.value for item in Sinks))] = Sinks.KEYS_AND_ROWS.value,
    verbose: Annotated[bool, Flag()] = False,
) -> Annotated[MODEL, Out("model")]:
    """Let a model attend to a share of the tiles of tokens, as networks that are trained for it do.

    `sol-attn` approximates attention to all tokens, which is what is computed for it. Neither `extra_tokens`, which
    brings results nearer to that, nor `verbose` change anything.
    """
    name = selection["selection"]
    network = model.model.diffusion_model
    if name == Method.CUBES.value and not isinstance(network, MiniMaxH3Transformer):
        raise ValueError("selection: vsa needs the cubes of a video of MiniMax H3; got another model, expected sla")
    sparse = model.clone()
    if name == ADAPTIVE:
        return sparse
    sampling = model.get_model_object("model_sampling")
    highest, lowest = (float(sampling.percent_to_sigma(percent)) for percent in (start_percent, end_percent))
    schedule = SparseSchedule(highest, lowest, min_tokens, block_ranges(dense_blocks))
    share = selection["keep_percent"] / 100.0
    if isinstance(network, MiniMaxH3Transformer):
        blocks = SparseBlocks(schedule, Method(name), share, Sinks(sink_conditioning))
        set_in_blocks(sparse, range(network.config.num_layers), partial(SparseBlock, blocks))
        if name == Method.CUBES.value and not network.config.gate_compress:
            message = "BlockSparseAttention: the model has no gates for vsa, attention among means of cubes is left out"
            report_warning(log, "sparse_attention_without_gates", message)
        return sparse
    options = dict(sparse.model_options["transformer_options"])
    options[OVERRIDE] = SparseOverride(schedule, share, options.get(OVERRIDE))
    sparse.model_options["transformer_options"] = options
    return sparse


NODES = (block_sparse_attention,)
