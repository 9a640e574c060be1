"""The node that makes the attention of a model sparse."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Annotated, Any

from darkroom.engine.diffusion.sparse_attention import SparseOverride, SparseSchedule, block_ranges
from darkroom.engine.families.minimax_h3.sparse_attention import Method, Sinks, SparseBlock, SparseBlocks
from darkroom.engine.families.minimax_h3.transformer import MiniMaxH3Transformer
from darkroom.engine.log_context import report_warning
from darkroom.engine.models.model import Model
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
        _set_in_blocks(sparse, network, SparseBlocks(schedule, Method(name), share, Sinks(sink_conditioning)))
        if name == Method.CUBES.value and not network.config.gate_compress:
            message = "BlockSparseAttention: the model has no gates for vsa, attention among means of cubes is left out"
            report_warning(log, "sparse_attention_without_gates", message)
        return sparse
    options = dict(sparse.model_options["transformer_options"])
    options[OVERRIDE] = SparseOverride(schedule, share, options.get(OVERRIDE))
    sparse.model_options["transformer_options"] = options
    return sparse


def _set_in_blocks(model: Model, network: MiniMaxH3Transformer, blocks: SparseBlocks) -> None:
    """Put functions in place of a model's blocks; those of nodes before are called by them."""
    replaced = model.model_options["transformer_options"].get("patches_replace", {}).get("dit", {})
    for index in range(network.config.num_layers):
        function = SparseBlock(blocks, index, replaced.get(("double_block", index)))
        model.set_model_patch_replace(function, "dit", "double_block", index)


NODES = (block_sparse_attention,)
