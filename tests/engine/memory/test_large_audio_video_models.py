"""MiniMax H3 and LTX-2 on cards of 24, 48 and 80 GB, by the real sizes of their weights, in bfloat16 and float8.

Nothing of these models is read: their files are sparse, and what is tested are plans: what lies on the card, what stays
on the host and passes through buffers, and that all of it fits beside the working memory of a video of the usual size.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Final

import pytest
import torch

from darkroom.engine.diffusion.denoiser import ModelConfig
from darkroom.engine.families import registry
from darkroom.engine.families.minimax_h3.sizes import CELL_PX, audio_frames, latent_frames
from darkroom.engine.formats.fill import Destination
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_source import source_of
from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.plan import LoadRequest, ResidentModel, limits_of, plan_residency
from darkroom.engine.memory.simulated_device import SimulatedDevice
from darkroom.engine.memory.transfer_streams import TransferStreams
from darkroom.engine.models.load import LoadTypes, load_unet

GIB: Final = 1 << 30
LARGEST_BUFFERS_BYTES: Final = 4 * GIB
FORMS: Final = {"BF16": (torch.bfloat16, 2), "F8_E4M3": (torch.float8_e4m3fn, 1)}
STREAMS: Final = {  # latents [C, f, h, w] of the usual video, and those of its audio
    "minimax_h3": ((24, latent_frames(124), 768 // CELL_PX, 1344 // CELL_PX), (32, 2, audio_frames(124))),
    "ltx2": ((128, 1 + 120 // 8, 512 // 32, 768 // 32), (8, 126, 16)),
}
# The cards on which all weights of the transformer stay; on smaller ones the rest is on the host.
WHOLE_ON: Final = {
    ("minimax_h3", "BF16"): {80},
    ("minimax_h3", "F8_E4M3"): {80},
    ("ltx2", "BF16"): {48, 80},
    ("ltx2", "F8_E4M3"): {24, 48, 80},
}


def weights_of(folder: Path, name: str, form: str) -> ModuleWeights:
    """The transformer as a file of one type."""
    family = registry.family_named(name)
    stored, item_bytes = FORMS[form]
    with unfilled():
        network = family.denoiser.build(family.scales["full"].denoiser)
    header: dict[str, object] = {}
    metadata = family.denoiser.description(family.scales["full"].denoiser)
    if metadata:
        header["__metadata__"] = {key: json.dumps(value) for key, value in metadata.items()}
    end = 0
    for key, weight in network.state_dict().items():
        size = math.prod(weight.shape) * item_bytes
        header[key] = {"dtype": form, "shape": list(weight.shape), "data_offsets": [end, end + size]}
        end += size
    path = folder / f"{name}.safetensors"
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(len(text) + 8 + end)
    loaded = load_unet(path, LoadTypes(unet=stored, unet_computed=torch.bfloat16, to=Destination.SIMULATED_DEVICE))
    assert loaded.family.name == name
    device = SimulatedDevice(GIB)
    return ModuleWeights(
        "unet", loaded.unet, device=device, streams=TransferStreams(device), source=source_of(loaded.unet),
        compute_dtype=loaded.computed,
    )  # fmt: skip


def working_bytes_of(name: str) -> int:
    """The memory in which a step of the usual video is computed, in bfloat16."""
    family = registry.family_named(name)
    config = ModelConfig(family=family, memory_usage_factor=family.memory_usage_factor)
    network = torch.nn.Linear(1, 1, dtype=torch.bfloat16)
    packed = (2, 1, sum(math.prod(stream) for stream in STREAMS[name]))  # both conditions together
    return int(family.denoiser_type(network, config=config).memory_required(packed))


def text_bytes_of(name: str) -> int:
    """The largest text encoder in 16 bits."""
    family = registry.family_named(name)
    sizes = []
    for item in family.text:
        with unfilled():
            network = item.network.build(item.network.sizes["full"])
        sizes.append(sum(weight.numel() for weight in network.parameters()) * 2)
    return max(sizes)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", STREAMS)
def test_a_transformer_is_on_the_card_as_far_as_it_fits_and_its_text_encoder_leaves_for_it(
    tmp_path: Path, name: str, form: str
) -> None:
    weights = weights_of(tmp_path, name, form)
    billions = registry.family_named(name).default.billions
    assert weights.size_bytes == pytest.approx(billions * 1e9 * FORMS[form][1], rel=0.02)
    request = LoadRequest(
        1, weights.size_bytes, fixed_bytes=weights.fixed_bytes, block_bytes=weights.layers.block_bytes,
        casts=weights.layers.casts, conversion_bytes=weights.conversion_bytes,
        patching_bytes=weights.patches.room_bytes,
    )  # fmt: skip
    working, text = working_bytes_of(name), text_bytes_of(name)
    whole = set()
    for card_gb in (24, 48, 80):
        card_bytes = card_gb * GIB
        limits = limits_of(card_bytes)
        text_on_card = min(text, card_bytes - 4 * GIB)
        encoder = ResidentModel(9, text_on_card, text, last_used=1)
        plan = plan_residency(
            [request], [encoder], free_bytes=card_bytes - text_on_card, working_bytes=working, limits=limits
        )
        on_card, buffers = plan.weights[1], plan.num_buffers * plan.buffer_bytes
        left = text_on_card - sum(item.num_bytes for item in plan.evict)
        on_host = weights.size_bytes - on_card
        sys.stdout.write(
            f"{name} {form} on {card_gb} GB: {on_card / GIB:.1f} GiB resident, {on_host / GIB:.1f} GiB on the host, "
            f"{buffers / GIB:.2f} GiB of buffers, {working / GIB:.1f} GiB working, {left / GIB:.1f} GiB of text stay\n"
        )
        assert plan.missing_bytes == 0, "it runs"
        assert on_card + buffers + left + working + limits.reserve_bytes <= card_bytes
        if on_host:
            assert left == 0 and plan.num_buffers > 0, "the text encoder has left before anything is streamed"
            room = card_bytes - working - limits.reserve_bytes
            assert on_card > room - LARGEST_BUFFERS_BYTES, "no more is streamed than has to be"
        else:
            whole.add(card_gb)
    assert whole == WHOLE_ON[name, form]
