"""Decisions from the device and the flags, made before anything is loaded."""

from __future__ import annotations

import pytest

from darkroom.engine.memory.device_facts import DeviceFacts
from darkroom.engine.memory.placement import Place, Role, place_of
from darkroom.engine.memory.relief import MemorySavings, OomContext, ReliefStep, savings_by_step
from darkroom.engine.memory.resolve import resolve_settings
from darkroom.engine.memory.state import VramState, choose_state
from darkroom.engine.settings import (
    DtypePolicies,
    DtypePolicy,
    DtypeSettings,
    EngineSettings,
    MemorySettings,
    VramChoice,
)

GIB = 1 << 30
CPU = DeviceFacts("cpu", "cpu", "the CPU", 32 * GIB, 16 * GIB)
CARD = DeviceFacts("cuda", "cuda:0", "a card", 24 * GIB, 20 * GIB, True, True, True)
FULL_CARD = DeviceFacts("cuda", "cuda:0", "a card", 24 * GIB, GIB, True, True, True)
OLD_CARD = DeviceFacts("cuda", "cuda:0", "an old card", 4 * GIB, 3 * GIB)
APPLE = DeviceFacts("mps", "mps", "mps", 32 * GIB, 16 * GIB, True, is_shared=True)


@pytest.mark.parametrize(
    ("choice", "facts", "state"),
    [
        ("auto", CPU, VramState.DISABLED),
        ("highvram", CPU, VramState.DISABLED),
        ("auto", CARD, VramState.NORMAL_VRAM),
        ("auto", FULL_CARD, VramState.LOW_VRAM),
        ("normalvram", FULL_CARD, VramState.NORMAL_VRAM),
        ("novram", CARD, VramState.NO_VRAM),
        ("lowvram", CARD, VramState.LOW_VRAM),
        ("highvram", CARD, VramState.HIGH_VRAM),
        ("gpu_only", CARD, VramState.GPU_ONLY),
        ("auto", APPLE, VramState.SHARED),
        ("highvram", APPLE, VramState.HIGH_VRAM),
    ],
)
def test_the_state_follows_the_device_unless_a_flag_says_otherwise(
    choice: VramChoice, facts: DeviceFacts, state: VramState
) -> None:
    assert choose_state(choice, facts)[0] is state


@pytest.mark.parametrize(
    ("state", "role", "place"),
    [
        (VramState.DISABLED, "unet", Place(False, True)),
        (VramState.NO_VRAM, "unet", Place(True, False)),
        (VramState.LOW_VRAM, "text_encoder", Place(False, True)),
        (VramState.NORMAL_VRAM, "text_encoder", Place(True, False)),
        (VramState.HIGH_VRAM, "controlnet", Place(True, True)),
        (VramState.HIGH_VRAM, "vae", Place(True, False)),
        (VramState.GPU_ONLY, "vae", Place(True, True)),
        (VramState.SHARED, "text_encoder", Place(False, True)),
    ],
)
def test_networks_live_where_their_state_has_them(state: VramState, role: Role, place: Place) -> None:
    assert place_of(role, state) == place


def test_a_vae_on_the_cpu_stays_there_in_every_state() -> None:
    assert all(not place_of("vae", state, cpu_vae=True).on_device for state in VramState)


@pytest.mark.parametrize(
    ("facts", "dtypes", "expected"),
    [
        (CPU, DtypeSettings(), ("float32", "float32", "float32", "float32", "float32")),
        (CPU, DtypeSettings(unet="bfloat16"), ("bfloat16", "bfloat16", "float32", "float32", "float32")),
        (CPU, DtypeSettings(unet="float8_e4m3fn"), ("float8_e4m3fn", "float32", "float32", "float32", "float32")),
        (CARD, DtypeSettings(), ("float16", "float16", "float16", "float32", "bfloat16")),
        (CARD, DtypeSettings(unet="float8_e5m2"), ("float8_e5m2", "float16", "float16", "float32", "bfloat16")),
        (CARD, DtypeSettings(force_fp32=True), ("float32", "float32", "float16", "float32", "float32")),
        (CARD, DtypeSettings(text_encoder="bfloat16"), ("float16", "float16", "bfloat16", "float32", "bfloat16")),
        (APPLE, DtypeSettings(unet="float8_e4m3fn"), ("float16", "float16", "float32", "float32", "float32")),
        (APPLE, DtypeSettings(text_encoder="float8_e5m2"), ("float16", "float16", "float8_e5m2", "float32", "float32")),
        (OLD_CARD, DtypeSettings(), ("float32", "float32", "float32", "float32", "float32")),
    ],
)
def test_types_follow_the_device_unless_a_flag_says_otherwise(
    facts: DeviceFacts, dtypes: DtypeSettings, expected: tuple[str, ...]
) -> None:
    resolved, lines = resolve_settings(EngineSettings(dtypes=dtypes), facts)
    assert expected == (
        resolved.unet_dtype,
        resolved.unet_compute_dtype,
        resolved.text_encoder_dtype,
        resolved.text_encoder_compute_dtype,
        resolved.vae_dtype,
    )
    assert all("(" in line for line in lines[1:]), "every decision has its reason"


BFLOAT16_ONLY = DtypePolicies(unet=DtypePolicy(prefers=("bfloat16",), computes=("float32", "bfloat16")))


@pytest.mark.parametrize(
    ("facts", "dtypes", "kept", "computed"),
    [
        (CPU, DtypeSettings(), "float32", "float32"),
        (CARD, DtypeSettings(), "bfloat16", "bfloat16"),
        (CARD, DtypeSettings(force_fp16=True), "bfloat16", "bfloat16"),
        (CARD, DtypeSettings(unet="float16"), "float16", "float16"),
        (CARD, DtypeSettings(unet="float8_e4m3fn"), "float8_e4m3fn", "bfloat16"),
        (OLD_CARD, DtypeSettings(), "float32", "float32"),
    ],
)
def test_a_network_that_goes_wrong_in_float16_gets_it_only_when_that_is_asked_for(
    facts: DeviceFacts, dtypes: DtypeSettings, kept: str, computed: str
) -> None:
    resolved, _ = resolve_settings(EngineSettings(dtypes=dtypes), facts, BFLOAT16_ONLY)
    assert (resolved.unet_dtype, resolved.unet_compute_dtype) == (kept, computed)


def test_a_text_encoder_on_the_cpu_is_kept_in_the_type_it_computes_in() -> None:
    settings = EngineSettings(memory=MemorySettings(vram="lowvram"))
    assert resolve_settings(settings, CARD)[0].text_encoder_dtype == "float32"


def test_relief_goes_from_what_costs_nothing_to_what_changes_arithmetic() -> None:
    steps = list(savings_by_step(OomContext(True, True, True, True)))
    assert [step for step, _ in steps] == [
        ReliefStep.CACHES,
        ReliefStep.OTHER_MODELS,
        ReliefStep.PARTIAL_LOAD,
        ReliefStep.PARTIAL_LOAD,
        ReliefStep.TILED_VAE,
        ReliefStep.ATTENTION_SLICES,
        ReliefStep.ATTENTION_SLICES,
    ]
    assert steps[-1][1] == MemorySavings(weights_share=0.0, tiles=True, attention_slices=16)
    changes = [step.changes_arithmetic for step, _ in steps]
    assert changes == sorted(changes), "nothing that keeps the bits comes after what does not"


def test_steps_that_could_not_help_are_left_out() -> None:
    assert [step for step, _ in savings_by_step(OomContext(False, False, False, False))] == [ReliefStep.CACHES]
    assert [step for step, _ in savings_by_step(OomContext(False, False, True, False))] == [
        ReliefStep.CACHES,
        ReliefStep.TILED_VAE,
    ]
