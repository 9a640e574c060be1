"""Transformers of 12 to 20 thousand million weights on cards of 8 to 48 GB, by their real sizes; and files as RAM.

Nothing of these models is read: their files are sparse, and what is tested are plans and views. That a plan is carried
out to the same bits is tested on small models (`offload/test_packed_weights.py`).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from darkroom.engine.families import registry
from darkroom.engine.families.flux.transformer import FluxConfig
from darkroom.engine.formats.fill import Destination, fill
from darkroom.engine.formats.safetensors_file import SafetensorsFile
from darkroom.engine.formats.unfilled import unfilled
from darkroom.engine.formats.weight_source import source_of
from darkroom.engine.memory.offload.module_weights import ModuleWeights
from darkroom.engine.memory.plan import LoadRequest, ResidentModel, limits_of, plan_residency
from darkroom.engine.memory.simulated_device import SimulatedDevice
from darkroom.engine.memory.transfer_streams import TransferStreams
from darkroom.engine.models.load import LoadTypes, load_unet
from tests.engine.memory.simulated import Card
from tests.engine.models.test_load_memory import STATUS, watched
from tests.parity.quantised_models import write_sparse_gguf

FAMILY = registry.family_named("flux")
FULL: FluxConfig = FAMILY.scales["full"].denoiser
CONFIGS = {"12": FULL, "20": replace(FULL, num_double=32, num_single=64)}
GIB, MIB = 1 << 30, 1 << 20
WORKING_BYTES = 3 * GIB  # of an image of 1024 x 1024
WAN = registry.family_named("wan")
WAN_14B = replace(WAN.scales["full"].denoiser, width=5120, num_blocks=40, inner_width=13824)
VIDEO_BYTES = 5 * GIB  # of 81 frames of 832 x 480, both conditions at once
TEXT_ENCODER = ResidentModel(9, 5 * GIB, 5 * GIB, last_used=1)


def weights_of(folder: Path, config: FluxConfig, kind: str, card_bytes: int) -> ModuleWeights:
    with unfilled():
        network = FAMILY.denoiser.build(config)
    path = folder / f"{kind}.gguf"
    shapes = {name: tuple(weight.shape) for name, weight in network.named_parameters()}
    write_sparse_gguf(path, shapes, "flux", kind)
    loaded = load_unet(path, LoadTypes(unet=torch.bfloat16, to=Destination.SIMULATED_DEVICE))
    device = SimulatedDevice(card_bytes)
    return ModuleWeights(
        "unet", loaded.unet, device=device, streams=TransferStreams(device), source=source_of(loaded.unet),
        compute_dtype=loaded.computed,
    )  # fmt: skip


def request_of(weights: ModuleWeights) -> LoadRequest:
    return LoadRequest(
        1,
        weights.size_bytes,
        fixed_bytes=weights.fixed_bytes,
        block_bytes=weights.layers.block_bytes,
        casts=weights.layers.casts,
        conversion_bytes=weights.conversion_bytes,
        patching_bytes=weights.patches.room_bytes,
    )


def expert_of(folder: Path, kind: str) -> ModuleWeights:
    """A transformer of Wan 14B as a GGUF or a float8 file."""
    with unfilled():
        network = WAN.denoiser.build(WAN_14B)
    shapes = {name: tuple(weight.shape) for name, weight in network.named_parameters()}
    path = folder / f"{kind}.{'safetensors' if kind == 'F8_E4M3' else 'gguf'}"
    if kind == "F8_E4M3":
        header, place = {}, 0
        for name, shape in shapes.items():
            header[name] = {
                "dtype": kind, "shape": list(shape), "data_offsets": [place, place + math.prod(shape)],
            }  # fmt: skip
            place += math.prod(shape)
        sparse_safetensors(path, header, place)
    else:
        write_sparse_gguf(path, shapes, "wan", kind)
    types = LoadTypes(
        unet=torch.float8_e4m3fn if kind == "F8_E4M3" else torch.bfloat16, unet_computed=torch.bfloat16,
        to=Destination.SIMULATED_DEVICE,
    )  # fmt: skip
    loaded = load_unet(path, types)
    device = SimulatedDevice(GIB)
    return ModuleWeights(
        kind, loaded.unet, device=device, streams=TransferStreams(device), source=source_of(loaded.unet),
        compute_dtype=loaded.computed,
    )  # fmt: skip


@pytest.mark.parametrize(("kind", "bits"), [("F8_E4M3", 8.0), ("Q8_0", 8.5), ("Q4_K", 4.5)])
def test_the_second_expert_of_wan_14b_takes_the_place_of_the_first_unless_both_fit(
    tmp_path: Path, kind: str, bits: float
) -> None:
    """The first has sampled, and lies on the card as far as it could; then the second is wanted."""
    request = request_of(expert_of(tmp_path, kind))
    assert request.size_bytes == pytest.approx(14.3e9 * bits / 8, rel=0.03)
    for card_gb in (8, 12, 16, 24, 32, 48):
        limits = limits_of(card_gb * GIB)
        first = plan_residency([request], [], free_bytes=card_gb * GIB, working_bytes=VIDEO_BYTES, limits=limits)
        on_card = first.weights[1]
        expert = ResidentModel(8, on_card, request.size_bytes, last_used=1)
        second = plan_residency(
            [request], [expert], free_bytes=card_gb * GIB - on_card, working_bytes=VIDEO_BYTES, limits=limits
        )
        left = on_card - sum(item.num_bytes for item in second.evict)
        sys.stdout.write(
            f"Wan 14B, {kind}, {request.size_bytes / GIB:.1f} GiB on {card_gb} GB: {on_card / GIB:.1f} GiB of one, "
            f"then {second.weights[1] / GIB:.1f} GiB of the other beside {left / GIB:.1f} GiB of the first\n"
        )
        assert first.missing_bytes == second.missing_bytes == 0, "it runs"
        assert second.weights[1] >= on_card, "the second has the place that the first had"
        buffers = second.num_buffers * second.buffer_bytes
        assert second.weights[1] + left + buffers + VIDEO_BYTES + limits.reserve_bytes <= card_gb * GIB
        assert left >= 0
        if second.weights[1] < request.size_bytes:
            assert left == 0, "nothing is streamed while a weight of the other lies there"
        fits_both = 2 * request.size_bytes + VIDEO_BYTES + limits.reserve_bytes <= card_gb * GIB
        assert (left == request.size_bytes) == fits_both


@pytest.mark.parametrize("kind", ("Q8_0", "Q4_K"))
@pytest.mark.parametrize("size", CONFIGS)
def test_what_does_not_fit_a_card_is_streamed_and_text_encoders_leave_first(
    tmp_path: Path, size: str, kind: str
) -> None:
    weights = weights_of(tmp_path, CONFIGS[size], kind, 24 * GIB)
    request = request_of(weights)
    bits = {"Q8_0": 8.5, "Q4_K": 4.5}[kind]
    assert weights.size_bytes == pytest.approx(float(size) * 1e9 * bits / 8, rel=0.06)
    for card_gb in (8, 12, 16, 24):
        card_bytes = card_gb * GIB
        limits = limits_of(card_bytes)
        plan = plan_residency(
            [request], [TEXT_ENCODER], free_bytes=card_bytes - TEXT_ENCODER.loaded_bytes, working_bytes=WORKING_BYTES,
            limits=limits,
        )  # fmt: skip
        on_card = plan.weights[1]
        buffers = plan.num_buffers * plan.buffer_bytes
        left = TEXT_ENCODER.loaded_bytes - sum(item.num_bytes for item in plan.evict)
        sys.stdout.write(
            f"{size} thousand million weights, {kind}: {weights.size_bytes / GIB:.1f} GiB on {card_gb} GB: "
            f"{on_card / GIB:.1f} GiB stay, {plan.num_buffers} buffers of {plan.buffer_bytes / MIB:.0f} MiB, "
            f"{left / GIB:.1f} GiB of text encoders stay\n"
        )
        assert plan.missing_bytes == 0, "it runs"
        assert on_card + buffers + left + WORKING_BYTES + limits.reserve_bytes <= card_bytes
        if on_card < weights.size_bytes:
            assert left == 0, "what is not used leaves before anything is streamed"
            assert plan.num_buffers >= 1 and on_card > card_bytes - 7 * GIB, "no more is streamed than has to be"
        else:
            assert weights.size_bytes < card_bytes - WORKING_BYTES


def test_nothing_of_a_file_is_read_before_it_is_needed(tmp_path: Path) -> None:
    if not STATUS.exists():
        pytest.skip("needs Linux")
    with watched() as most:
        weights = weights_of(tmp_path, FULL, "Q8_0", 8 * GIB)
    assert weights.size_bytes > 11 * GIB
    assert most() < 100 * MIB
    assert (tmp_path / "Q8_0.gguf").stat().st_blocks * 512 < MIB, "it takes no space on disk either"


@pytest.mark.slow
def test_a_float8_file_is_computed_with_through_its_map(tmp_path: Path) -> None:
    """A model larger than what the process takes: its pages are the file's, and leave when memory is short."""
    if not STATUS.exists():
        pytest.skip("needs Linux")
    num_layers, rows, columns = 40, 8192, 4096
    header = {
        f"{index}.weight": {
            "dtype": "F8_E4M3", "shape": [rows, columns] if index % 2 == 0 else [columns, rows],
            "data_offsets": [index * rows * columns, (index + 1) * rows * columns],
        }
        for index in range(num_layers)
    }  # fmt: skip
    path = sparse_safetensors(tmp_path / "large.safetensors", header, num_layers * rows * columns)
    with unfilled():
        network = nn.Sequential(
            *(
                nn.Linear(columns, rows, bias=False) if index % 2 == 0 else nn.Linear(rows, columns, bias=False)
                for index in range(num_layers)
            )
        )
    names = {name: name for name, _ in network.named_parameters()}
    warm = nn.Linear(columns, rows, bias=False)
    warm(torch.zeros(1, columns))
    with watched() as most:
        fill(network, SafetensorsFile(path), names, torch.float32, keep=(torch.float8_e4m3fn,))
        weights = ModuleWeights("unet", network, source=source_of(network), compute_dtype=torch.float32)
        assert weights.size_bytes == num_layers * rows * columns > GIB
        handle = Card(GIB).pool.add(weights, "unet")
        with handle.in_use() as used, torch.inference_mode():
            found = used(torch.ones(1, columns))
    assert torch.count_nonzero(found) == 0
    assert most() < 4 * rows * columns * 2, "one layer in float32, and a little"


def sparse_safetensors(path: Path, header: Mapping[str, object], num_bytes: int) -> Path:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(len(text) + 8 + num_bytes)
    return path
