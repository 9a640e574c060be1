"""Nodes of PhotoMaker: a person in an image takes the place of a word in the prompt."""

from __future__ import annotations

from typing import Annotated

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.sockets import CLIP, CONDITIONING, IMAGE, PHOTOMAKER
from darkroom.engine.nodes.widgets import ModelCombo, PromptText

MODULE = "comfy_extras.nodes_photomaker"
PERSON = "photomaker"  # the word of a prompt that the person takes the place of


@node(
    "PhotoMakerLoader",
    display_name="Load PhotoMaker Model",
    category="model/loaders",
    python_module=MODULE,
    experimental=True,
)
def photomaker_loader(
    context: NodeContext, *, photomaker_model_name: Annotated[str, ModelCombo("photomaker")]
) -> PHOTOMAKER:
    loaded: PHOTOMAKER = context.models.auxiliary.photomaker(photomaker_model_name)
    return loaded


@node(
    "PhotoMakerEncode",
    display_name="PhotoMaker Encode",
    category="model/conditioning/photomaker",
    python_module=MODULE,
    experimental=True,
)
def photomaker_encode(
    context: NodeContext,
    *,
    photomaker: PHOTOMAKER,
    image: IMAGE,
    clip: CLIP,
    text: Annotated[str, PromptText(multiline=True, dynamicPrompts=True)] = "photograph of photomaker",
) -> CONDITIONING:
    """Encode a prompt and fuse the token at the place of the word `photomaker` with the person in an image.

    The place is counted in words, and tokens are dropped by the number of their group, as in ComfyUI.
    """
    words = text.split(" ")
    number = words.index(PERSON) + 1 if PERSON in words else None
    tokens = {}
    for slot, chunks in clip.tokenize(text, return_word_ids=True).items():
        kept = [[item for item in chunk if item[2] != number] for chunk in chunks]
        tokens[slot] = [
            [(item[0], item[1]) for item in [*part, *[chunk[-1]] * (len(chunk) - len(part))]]
            for part, chunk in zip(kept, chunks, strict=True)
        ]
    cond, pooled = clip.encode_from_tokens(tokens, return_pooled=True)
    if number is not None:
        cond = photomaker.fuse(image, cond, number - 1)
    return [[cond, {"pooled_output": pooled}]]


NODES = (photomaker_loader, photomaker_encode)
