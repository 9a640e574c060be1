"""Node classes made for HunyuanDiT: a prompt for each of its text encoders."""

from __future__ import annotations

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING
from darkroom.engine.nodes.widgets import LongText

SECOND_SLOT = "mt5xl"


@node(
    "CLIPTextEncodeHunyuanDiT",
    display_name="CLIP Text Encode (Hunyuan Image)",
    category="model/conditioning/hunyuan image",
    python_module="comfy_extras.nodes_hunyuan",
)
def clip_text_encode_hunyuan_dit(context: NodeContext, *, clip: CLIP, bert: LongText, mt5xl: LongText) -> CONDITIONING:
    """Encode a prompt for each of two text encoders. Raises ValueError for another family's encoders."""
    second = clip.tokenize(mt5xl)
    if SECOND_SLOT not in second:
        raise ValueError(
            f"clip: it is not that of HunyuanDiT; got encoders {', '.join(second)}, expected {SECOND_SLOT} among them"
        )
    return clip.encode_from_tokens_scheduled({**clip.tokenize(bert), SECOND_SLOT: second[SECOND_SLOT]})


NODES = (clip_text_encode_hunyuan_dit,)
