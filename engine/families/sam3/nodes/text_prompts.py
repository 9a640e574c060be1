"""CONDITIONING of SAM 3's text encoder as texts for its network."""

from __future__ import annotations

import torch

from darkroom.engine.families.sam3.network import Sam3
from darkroom.engine.families.sam3.segmentation import WantedText
from darkroom.engine.nodes.sockets import CONDITIONING
from darkroom.engine.text.sam3 import CONDITIONS, MASK, MAX_DESCRIPTIONS

MAX_TOKENS = 4096


def check_texts(network: Sam3, conditioning: CONDITIONING) -> None:
    """Raise ValueError for a conditioning that another text encoder made, and for too long or too many texts."""
    found = _descriptions(conditioning)
    if len(found) > MAX_DESCRIPTIONS:
        raise ValueError(f"conditioning: got {len(found)} texts, expected at most {MAX_DESCRIPTIONS}")
    for tokens, _, _ in found:
        shape = tuple(tokens.shape) if isinstance(tokens, torch.Tensor) else ()
        wanted = network.config.detector.text_size
        if len(shape) != 3 or shape[2] != wanted or not 0 < shape[1] <= MAX_TOKENS:
            raise ValueError(
                f"conditioning: got tokens of shape {list(shape)}, expected at most {MAX_TOKENS} of width {wanted}, as "
                "CLIPTextEncode makes them with the CLIP of the same checkpoint"
            )


def texts_of(network: Sam3, conditioning: CONDITIONING, device: torch.device, dtype: torch.dtype) -> list[WantedText]:
    """Return the texts of a conditioning, of several descriptions each one. The network is in use."""
    texts = []
    for tokens, mask, most in _descriptions(conditioning):
        is_seen = torch.ones(1, tokens.shape[1]) if mask is None else mask[:1, : tokens.shape[1]]
        prompt = network.text(tokens[:1].to(device, dtype), is_seen.bool().to(device))
        texts.append(WantedText(prompt, most))
    return texts


def _descriptions(conditioning: CONDITIONING) -> list[tuple[torch.Tensor, torch.Tensor | None, int]]:
    if not conditioning:
        return []
    tokens, options = conditioning[0]
    several = options.get(CONDITIONS)
    if several is None:
        return [(tokens, options.get(MASK), 1)]
    return [(item["cond"], item.get(MASK), int(item.get("max_detections", 1))) for item in several]
