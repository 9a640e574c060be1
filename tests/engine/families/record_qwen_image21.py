"""Record what the diffusers library (0.42.1) makes of small networks of Qwen-Image 2.1.

    python -m tests.engine.families.record_qwen_image21

Its package and what it needs have to be installed; no test needs them.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from safetensors.torch import save_file

from tests.engine.families.qwen_image21_networks import (
    FILE,
    IMAGE,
    LATENT,
    REFERENCE,
    SLOT,
    TEXT,
    TIMES,
    diffusers_name,
    drawn_vae,
    separate_network,
)


def main() -> int:
    from diffusers import AutoencoderKLQwenImage21, QwenImage21Transformer2DModel

    network, vae = separate_network(), drawn_vae()
    config = network.config
    theirs: Any = QwenImage21Transformer2DModel(
        num_layers=config.num_blocks, attention_head_dim=128, num_attention_heads=config.heads,
        context_in_dim=config.context_dim, mlp_ratio=config.inner_width // config.width,
    ).eval()  # fmt: skip
    theirs.load_state_dict(network.state_dict())
    their_vae: Any = AutoencoderKLQwenImage21(
        base_dim=vae.config.base_channels, decoder_base_dim=vae.config.decoder_channels
    ).eval()
    own = {diffusers_name(name): weight for name, weight in vae.state_dict().items()}
    their_vae.load_state_dict({name: own[name].reshape(item.shape) for name, item in their_vae.state_dict().items()})
    with torch.no_grad():
        plain = _drawn(theirs, [LATENT], TEXT, [])
        spliced = _drawn(theirs, [REFERENCE, LATENT], TEXT, [SLOT])
        encoded = their_vae.encode(IMAGE.unsqueeze(2)).latent_dist.mean.squeeze(2)
        decoded = their_vae.decode(LATENT.unsqueeze(2)).sample.squeeze(2)
    tensors = {"plain": plain, "spliced": spliced, "encoded": encoded, "decoded": decoded}
    save_file({name: item.contiguous() for name, item in tensors.items()}, FILE)
    return 0


def _drawn(network: Any, images: list[torch.Tensor], text: torch.Tensor, slots: list[int]) -> torch.Tensor:
    """Return the prediction for the last image, the others being references at the positions `slots` of the text."""
    bounds = [0, *slots, text.shape[1]]
    rows, mask = [], []
    for place, image in enumerate(images):
        stretch = text[:, bounds[place] : bounds[place + 1]]
        slots_of = image.shape[-2] * image.shape[-1] // 4
        rows += [stretch, torch.zeros(len(text), slots_of, text.shape[2])]
        mask += [torch.zeros(stretch.shape[1]), torch.ones(slots_of)]
    latents = torch.cat([image.flatten(2).transpose(1, 2) for image in images], dim=1)
    shapes = [[(1, *image.shape[-2:]) for image in images]]
    context = torch.cat(rows[:-1], dim=1)
    out = network(latents, context, TIMES, shapes, torch.cat(mask).bool().expand(len(text), -1)).sample
    drawn: torch.Tensor = out[:, -images[-1].shape[-2] * images[-1].shape[-1] :]
    return drawn.transpose(1, 2).reshape(images[-1].shape)


if __name__ == "__main__":
    sys.exit(main())
