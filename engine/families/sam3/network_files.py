"""Files of SAM 3 and SAM 3.1: the names of their tensors, and sizes from shapes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from darkroom.engine.families.base import NotRecognised
from darkroom.engine.families.sam3.detector import DetectorConfig
from darkroom.engine.families.sam3.image_encoder import HEAD_SIZE as IMAGE_HEAD_SIZE
from darkroom.engine.families.sam3.image_encoder import image_encoder_config
from darkroom.engine.families.sam3.layers import HEAD_SIZE
from darkroom.engine.families.sam3.mask_decoder import MaskDecoderConfig
from darkroom.engine.families.sam3.network import Sam3Config
from darkroom.engine.families.sam3.tracker import TrackerConfig
from darkroom.engine.formats.weight_file import Item, Names, Part
from darkroom.engine.layers.shapes import Shapes, count_children

BACKBONE = "detector.backbone.vision_backbone."
SIGNATURE = (f"{BACKBONE}trunk.blocks.0.attn.qkv.weight", "detector.transformer.decoder.query_embed.weight")
OF_TRACKER = f"{BACKBONE}propagation_convs.0.conv_1x1.weight"
SAM_31 = "SAM 3.1"
TRACKER_PREFIXES = ("tracker.model.", "tracker.")
FUSED = (("in_proj_weight", "weight"), ("in_proj_bias", "bias"))
PROJECTIONS = ("q_proj", "k_proj", "v_proj")

# Beginnings of names in files, with those in the network; the first that fits counts.
OF_DETECTOR = (
    (f"{BACKBONE}trunk.", "image_encoder."),
    (f"{BACKBONE}convs.", "detector_levels."),
    (f"{BACKBONE}propagation_convs.", "tracker_levels."),
    (f"{BACKBONE}interactive_convs.", "segmenter_levels."),
    (f"{BACKBONE}sam2_convs.", "segmenter_levels."),
    ("detector.backbone.language_backbone.resizer.", "text_projection."),
    ("detector.", "detector."),
)
OF_SEGMENTER = (("sam_mask_decoder.", "segmenter.mask_decoder."), ("sam_prompt_encoder.", "segmenter.prompt_encoder."))
OF_TRACKER_31 = (
    *((f"interactive_{theirs}", ours) for theirs, ours in OF_SEGMENTER),
    ("interactivity_no_mem_embed", "segmenter.no_memory"),
    ("interactive_obj_ptr_proj.", "tracker.mask_pointer."),
    ("interactive_mask_downsample.", "tracker.mask_pooling."),
    ("obj_ptr_proj.", "tracker.pointer."),
    ("obj_ptr_tpos_proj.", "tracker.pointer_positions."),
    ("no_obj_ptr_linear.", "tracker.absent_pointer."),
    ("no_obj_embed_spatial", "tracker.absent"),
    ("output_valid_embed", "tracker.used"),
    ("output_invalid_embed", "tracker.unused"),
    ("maskmem_tpos_enc", "tracker.frame_positions"),
    ("maskmem_backbone.", "tracker.memory_encoder."),
    ("transformer.encoder.", "tracker.memory_attention."),
    ("sam_mask_decoder.", "tracker.mask_decoder."),
    ("image_pe_layer.", "tracker.positions."),
)
OF_TRACKER_30 = (("no_mem_embed", "segmenter.no_memory"), *OF_SEGMENTER)
DECODER_LAYERS = (("mlp.lin1.", "mlp.0."), ("mlp.lin2.", "mlp.2."), ("norm_final_attn.", "norm_final."))
LEFT_OUT = re.compile(
    r"detector_levels\.3\.(?!conv|dconv)|segmenter_levels\.3\.|\.attn\.freqs_cis$"
    r"|^detector\.(backbone\.|geometry_encoder\.points_|segmentation_head\.semantic_seg_head\."
    r"|transformer\.decoder\.presence_token_(head|out_norm)\.)|\.interpol"
)
"""Tensors of the network that nothing here reads: points as examples, scores of the whole image, tables of angles."""


def sam3_names(shapes: Shapes) -> Names | None:
    """Return the names of the network's weights in a file, None for a file of another network."""
    if not all(name in shapes for name in SIGNATURE):
        return None
    of_tracker = OF_TRACKER_31 if OF_TRACKER in shapes else OF_TRACKER_30
    return {ours: item for name in shapes for ours, item in _own_names(name, of_tracker) if not LEFT_OUT.search(ours)}


def sam3_variant(shapes: Shapes) -> str:
    """Return the label of the network in a file: SAM 3.1 has a tracker, SAM 3 none that is read."""
    return SAM_31 if any(name.endswith(OF_TRACKER) for name in shapes) else "SAM 3"


def _own_names(name: str, of_tracker: Iterable[tuple[str, str]]) -> Iterator[tuple[str, Item]]:
    """Yield the names in the network that a tensor of the file stands for, each with what it is of that tensor."""
    prefix = next((prefix for prefix in TRACKER_PREFIXES if name.startswith(prefix)), "")
    inner = name.removeprefix(prefix)
    renamed = ((theirs, ours) for theirs, ours in (of_tracker if prefix else OF_DETECTOR) if inner.startswith(theirs))
    found = next(renamed, None)
    if found is None:
        return
    ours = found[1] + inner.removeprefix(found[0])
    if "mask_decoder.transformer." in ours:
        for theirs, own in DECODER_LAYERS:
            ours = ours.replace(theirs, own)
    fused = next((kind for ending, kind in FUSED if ours.endswith(ending)), None)
    if fused is None:
        yield ours, name
        return
    stem = ours.rpartition(".")[0]
    for index, projection in enumerate(PROJECTIONS):
        yield f"{stem}.{projection}.{fused}", Part(name, index, len(PROJECTIONS))


def sam3_config(shapes: Shapes) -> Sam3Config:
    """Return the configuration of a network with these weights.

    Raises LookupError for a missing tensor, `NotRecognised` for sizes that are no multiples of a head's.
    """
    size = shapes["text_projection.weight"][0]
    image = image_encoder_config(shapes, "image_encoder.")
    for found, head in ((size, HEAD_SIZE), (image.hidden_size, IMAGE_HEAD_SIZE)):
        if found < head or found % head:
            raise NotRecognised(f"SAM 3 of hidden size {found}, which is no multiple of {head}")
    layer = "detector.transformer.encoder.layers.0.linear1.weight"
    detector = DetectorConfig(
        hidden_size=size,
        intermediate_size=shapes[layer][0],
        encoder_layers=count_children(shapes, "detector.transformer.encoder.layers"),
        decoder_layers=count_children(shapes, "detector.transformer.decoder.layers"),
        num_queries=shapes["detector.transformer.decoder.query_embed.weight"][0],
        geometry_layers=count_children(shapes, "detector.geometry_encoder.encode"),
        geometry_intermediate_size=shapes["detector.geometry_encoder.encode.0.linear1.weight"][0],
        scores_intermediate_size=shapes["detector.dot_prod_scoring.prompt_mlp.layers.0.weight"][0],
        text_size=shapes["text_projection.weight"][1],
    )
    decoder = _decoder(shapes, "segmenter.mask_decoder.")
    return Sam3Config(image, detector, decoder, _tracker(shapes))


def _decoder(shapes: Shapes, prefix: str) -> MaskDecoderConfig:
    hidden, size = shapes[f"{prefix}transformer.layers.0.mlp.0.weight"]
    return MaskDecoderConfig(size, hidden, count_children(shapes, f"{prefix}transformer.layers"))


def _tracker(shapes: Shapes) -> TrackerConfig | None:
    if "tracker.used" not in shapes:
        return None
    return TrackerConfig(
        decoder=_decoder(shapes, "tracker.mask_decoder."),
        group_size=shapes["tracker.used"][0],
        num_frames=shapes["tracker.frame_positions"][0],
        memory_intermediate_size=shapes["tracker.memory_attention.layers.0.linear1.weight"][0],
        memory_layers=count_children(shapes, "tracker.memory_attention.layers"),
    )
