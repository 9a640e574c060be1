"""Decisions for the device from the settings: memory state and types. Pure."""

from __future__ import annotations

from darkroom.engine.memory.device_facts import DeviceFacts
from darkroom.engine.memory.dtypes import text_encoder_types, unet_types, vae_types
from darkroom.engine.memory.placement import place_of
from darkroom.engine.memory.state import VramState, choose_state
from darkroom.engine.settings import DtypePolicies, EngineSettings, ResolvedSettings

DEFAULT_POLICIES = DtypePolicies()


def resolve_settings(
    settings: EngineSettings, facts: DeviceFacts, policies: DtypePolicies = DEFAULT_POLICIES
) -> tuple[ResolvedSettings, list[str]]:
    """Return the decisions for networks of these policies, and for each a line that says why."""
    state, why = choose_state(settings.memory.vram, facts)
    text_on_device = place_of("text_encoder", state).on_device
    unet = unet_types(settings.dtypes, facts, policies.unet)
    vae = vae_types(settings.dtypes, facts, policies.vae)
    text = text_encoder_types(settings.dtypes, facts, policies.text_encoder, on_device=text_on_device)
    resolved = ResolvedSettings(
        device=facts.torch_name,
        vram=state.value,
        unet_dtype=unet.kept,
        vae_dtype=vae.kept,
        text_encoder_dtype=text.kept,
        unet_compute_dtype=unet.computed,
        text_encoder_compute_dtype=text.computed,
    )
    lines = [f"device: {facts.name}, {facts.total_bytes >> 20} MiB", f"memory state: {state.name} ({why})"]
    for kind, choice in (("UNet", unet), ("text encoder", text), ("VAE", vae)):
        computed = "" if choice.computed == choice.kept else f", computed in {choice.computed}"
        lines.append(f"{kind}: {choice.kept}{computed} ({choice.reason})")
    return resolved, lines


def state_of(resolved: ResolvedSettings) -> VramState:
    return VramState(resolved.vram)
