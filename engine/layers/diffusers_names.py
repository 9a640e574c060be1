"""Map between the diffusers library's names for the weights of latent diffusion networks and this engine's."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from darkroom.engine.layers.unet import UnetConfig
from darkroom.engine.layers.unet_layers import BlockSpec, DownSpec, ResSpec, TransformerSpec, UpSpec

WEIGHT_AND_BIAS = ("weight", "bias")

UNET_ENDS = {
    "time_embedding.linear_1": "time_embed.0",
    "time_embedding.linear_2": "time_embed.2",
    "conv_in": "input_blocks.0.0",
    "conv_norm_out": "out.0",
    "conv_out": "out.2",
}
LABEL_EMBEDDINGS = ("add_embedding", "class_embedding")  # one network has either
RESNET = {
    "norm1": "in_layers.0",
    "conv1": "in_layers.2",
    "time_emb_proj": "emb_layers.1",
    "norm2": "out_layers.0",
    "conv2": "out_layers.3",
    "conv_shortcut": "skip_connection",
}
TRANSFORMER = ("norm", "proj_in", "proj_out")
TRANSFORMER_BLOCK = (
    "norm1", "norm2", "norm3", "attn1.to_out.0", "attn2.to_out.0", "ff.net.0.proj", "ff.net.2",
)  # fmt: skip
TRANSFORMER_BLOCK_WITHOUT_BIAS = (
    "attn1.to_q", "attn1.to_k", "attn1.to_v", "attn2.to_q", "attn2.to_k", "attn2.to_v",
)  # fmt: skip

VAE_PARTS = {
    "conv_norm_out": "norm_out",
    "conv_shortcut": "nin_shortcut",
    "mid_block.attentions.0": "mid.attn_1",
    "mid_block.resnets.0": "mid.block_1",
    "mid_block.resnets.1": "mid.block_2",
}
VAE_ATTENTION = {
    "group_norm": "norm", "query": "q", "key": "k", "value": "v", "proj_attn": "proj_out",
    "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out",
}  # fmt: skip


def unet_names(config: UnetConfig) -> dict[str, str]:
    """Return a map from every weight's name in diffusers to that in `UnetModel`.

    It includes weights that some networks lack.
    """
    names = dict(_both(UNET_ENDS))
    names |= _side("down_blocks", "input_blocks", config.input_blocks[1:], first=1)
    names |= _side("up_blocks", "output_blocks", config.output_blocks, first=0)
    if config.label_dim:
        for theirs in LABEL_EMBEDDINGS:
            names |= _both({f"{theirs}.linear_1": "label_emb.0.0", f"{theirs}.linear_2": "label_emb.0.2"})
    num_resnets = num_attentions = 0
    for index, spec in enumerate(config.middle_block):
        if isinstance(spec, ResSpec):
            names |= _resnet(f"mid_block.resnets.{num_resnets}", f"middle_block.{index}")
            num_resnets += 1
        elif isinstance(spec, TransformerSpec):
            names |= _transformer(f"mid_block.attentions.{num_attentions}", f"middle_block.{index}", spec.depth)
            num_attentions += 1
    return names


def _side(theirs: str, ours: str, blocks: tuple[BlockSpec, ...], first: int) -> dict[str, str]:
    """Map one side of the network; a block of diffusers is the part between two changes of size here."""
    names: dict[str, str] = {}
    level = place = 0
    for number, block in enumerate(blocks, start=first):
        for index, spec in enumerate(block):
            inner = f"{ours}.{number}.{index}"
            if isinstance(spec, ResSpec):
                names |= _resnet(f"{theirs}.{level}.resnets.{place}", inner)
            elif isinstance(spec, TransformerSpec):
                names |= _transformer(f"{theirs}.{level}.attentions.{place}", inner, spec.depth)
            elif isinstance(spec, DownSpec):
                names |= _both({f"{theirs}.{level}.downsamplers.0.conv": f"{inner}.op"})
            elif isinstance(spec, UpSpec):
                names |= _both({f"{theirs}.{level}.upsamplers.0.conv": f"{inner}.conv"})
        if any(isinstance(spec, (DownSpec, UpSpec)) for spec in block):
            level, place = level + 1, 0
        else:
            place += 1
    return names


def _both(names: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for theirs, ours in names.items():
        for kind in WEIGHT_AND_BIAS:
            yield f"{theirs}.{kind}", f"{ours}.{kind}"


def _resnet(theirs: str, ours: str) -> dict[str, str]:
    return dict(_both({f"{theirs}.{their}": f"{ours}.{our}" for their, our in RESNET.items()}))


def _transformer(theirs: str, ours: str, depth: int) -> dict[str, str]:
    names = dict(_both({f"{theirs}.{part}": f"{ours}.{part}" for part in TRANSFORMER}))
    for number in range(depth):
        block = f"transformer_blocks.{number}"
        names |= _both({f"{theirs}.{block}.{part}": f"{ours}.{block}.{part}" for part in TRANSFORMER_BLOCK})
        names |= {
            f"{theirs}.{block}.{part}.weight": f"{ours}.{block}.{part}.weight"
            for part in TRANSFORMER_BLOCK_WITHOUT_BIAS
        }
    return names


def vae_names(names: Collection[str]) -> dict[str, str]:
    """Return the names of a VAE's weights in a file of diffusers, by those of `AutoencoderKl`.

    Attention's linear layers are 1x1 convolutions there.
    """
    levels = 1 + max(int(name.split(".")[2]) for name in names if name.startswith("encoder.down_blocks."))
    return {_vae_name(name, levels): name for name in names}


def _vae_name(name: str, levels: int) -> str:
    parts = name.split(".")
    if len(parts) > 4 and parts[1] in ("down_blocks", "up_blocks"):
        side = parts[1].removesuffix("_blocks")
        level = int(parts[2]) if side == "down" else levels - 1 - int(parts[2])
        if parts[3] == "resnets":
            name = ".".join([parts[0], side, str(level), "block", *parts[4:]])
        else:  # down- or upsamplers, of which there is one
            name = ".".join([parts[0], side, str(level), f"{side}sample", *parts[5:]])
    for theirs, ours in VAE_PARTS.items():
        name = name.replace(theirs, ours)
    if ".attn_1." in name:
        head, _, rest = name.partition(".attn_1.")
        part, _, kind = rest.rpartition(".")
        name = f"{head}.attn_1.{VAE_ATTENTION.get(part, part)}.{kind}"
    return name
