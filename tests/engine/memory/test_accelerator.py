"""Requests to torch for a card, and the use of its answers; the card itself is a stand-in."""

from __future__ import annotations

import platform
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from darkroom.engine.errors import OutOfMemory
from darkroom.engine.memory.device import ATTENTION_KERNELS, AcceleratorDevice, translate_device_error
from darkroom.engine.memory.device_facts import DeviceKind
from darkroom.engine.memory.dtypes import vae_types
from darkroom.engine.settings import DtypePolicies, DtypePolicy, DtypeSettings

GIB = 1 << 30


def card(kind: DeviceKind = "cuda", *, name: str = "NVIDIA A10G", chip: str = "", capability: int = 8) -> Any:
    device = AcceleratorDevice("cuda:0", kind)
    device._calls = SimpleNamespace(  # type: ignore[assignment]
        mem_get_info=lambda name: (3 * GIB, 24 * GIB),
        memory_reserved=lambda name: 8 * GIB,
        memory_allocated=lambda name: 5 * GIB,
        get_device_name=lambda torch_name: name,
        get_device_capability=lambda torch_name: (capability, 0),
        get_device_properties=lambda torch_name: SimpleNamespace(gcnArchName=chip, total_memory=24 * GIB),
        is_bf16_supported=lambda including_emulation: kind == "rocm" or capability >= 8,
    )
    return device


def test_what_torch_holds_without_using_is_free() -> None:
    assert (card().free_bytes(), card().total_bytes()) == (3 * GIB + 8 * GIB - 5 * GIB, 24 * GIB)
    report = card().report()
    assert (report.torch_vram_total_bytes, report.torch_vram_free_bytes) == (8 * GIB, 3 * GIB)


@pytest.mark.parametrize(
    ("device", "float16", "bfloat16"),
    [
        (card(), True, True),
        (card(name="Tesla V100", capability=7), True, False),
        (card(name="Quadro P4000", capability=6), False, False),
        (card(name="NVIDIA GeForce GTX 1660", capability=7), False, False),
        (card(name="NVIDIA T1000", capability=7), False, False),
        (card("rocm", name="AMD Instinct", chip="gfx942"), True, True),
        (card("rocm", name="AMD Radeon", chip="gfx1030:xnack-"), True, False),
    ],
)
def test_types_are_those_that_the_card_computes_fast_and_rightly(
    device: AcceleratorDevice, float16: bool, bfloat16: bool
) -> None:
    facts = device.facts()
    assert (facts.computes_float16, facts.computes_bfloat16) == (float16, bfloat16)


@pytest.mark.parametrize(
    ("kind", "name", "capability", "chip", "expected"),
    [
        ("cuda", "Tesla P40", 6, "", ("float32", "float32")),
        ("cuda", "Tesla V100", 7, "", ("float32", "float16")),
        ("cuda", "Tesla T4", 7, "", ("float32", "float16")),
        ("cuda", "NVIDIA GeForce GTX 1660", 7, "", ("float32", "float32")),
        ("cuda", "NVIDIA A10G", 8, "", ("bfloat16", "float16")),
        ("cuda", "NVIDIA H100", 9, "", ("bfloat16", "float16")),
        ("cuda", "NVIDIA B200", 10, "", ("bfloat16", "float16")),
        ("rocm", "AMD Instinct MI250X", 9, "gfx90a", ("float32", "float16")),
        ("rocm", "AMD Instinct MI300X", 9, "gfx942", ("float32", "float16")),
        ("rocm", "AMD Radeon RX 6900 XT", 10, "gfx1030", ("float32", "float16")),
        ("rocm", "AMD Radeon RX 7900 XTX", 11, "gfx1100", ("float32", "float16")),
        ("rocm", "AMD Radeon RX 9070 XT", 12, "gfx1201", ("bfloat16", "float16")),
    ],
)
def test_a_vae_computes_in_the_type_that_comfyui_chooses(
    kind: DeviceKind, name: str, capability: int, chip: str, expected: tuple[str, str]
) -> None:
    """The table is what `vae_dtype` of ComfyUI 0.3.64 returned for such cards.

    The first type is that of the usual VAEs, which overflow in float16, the second of those that do not.
    """
    facts = card(kind, name=name, capability=capability, chip=chip).facts()
    policies = (DtypePolicies().vae, DtypePolicy(prefers=("float16", "bfloat16")))
    for policy, wanted in zip(policies, expected, strict=True):
        assert vae_types(DtypeSettings(), facts, policy).computed == wanted
        assert vae_types(DtypeSettings(force_fp16=True), facts, policy).computed == wanted
        assert vae_types(DtypeSettings(force_fp32=True), facts, policy).computed == "float32"
        assert vae_types(DtypeSettings(vae="float16"), facts, policy).computed == "float16"


@pytest.mark.parametrize(("version", "expected"), [("15.1", "bfloat16"), ("14.0", "bfloat16"), ("13.6", "float32")])
def test_a_vae_on_apples_chips_computes_in_bfloat16_from_macos_14_on(
    monkeypatch: pytest.MonkeyPatch, version: str, expected: str
) -> None:
    monkeypatch.setattr(platform, "mac_ver", lambda: (version, ("", "", ""), "arm64"))
    facts = AcceleratorDevice("mps", "mps").facts()
    assert vae_types(DtypeSettings(), facts, DtypePolicies().vae).computed == expected


def test_attention_is_asked_of_cudnn_first_while_models_compute_on_an_nvidia_card() -> None:
    before = torch._C._get_sdp_priority_order()
    with card("rocm").computing():
        assert torch._C._get_sdp_priority_order() == before
    with card().computing():
        assert torch._C._get_sdp_priority_order()[:4] == [kernel.value for kernel in ATTENTION_KERNELS]
        x = torch.ones(1, 1, 2, 8)
        assert torch.equal(torch.nn.functional.scaled_dot_product_attention(x, x, x), x)
    assert torch._C._get_sdp_priority_order() == before


@pytest.mark.parametrize(
    "said",
    [
        "CUDA error: out of memory",
        "CUDA driver error: out of memory",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED",
        "GET was unable to find an engine to execute this computation",
        "Triton Error [CUDA]: out of memory",
    ],
)
def test_every_way_of_saying_that_memory_ran_out_is_taken_for_that(said: str) -> None:
    with pytest.raises(OutOfMemory), translate_device_error():
        raise RuntimeError(said)
