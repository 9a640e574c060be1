"""Choice of the types in which the weights of each network are stored and computed: pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from darkroom.engine.memory.device_facts import DeviceFacts
from darkroom.engine.settings import DtypeName, DtypePolicy, DtypeSettings

FLOAT8: tuple[DtypeName, ...] = ("float8_e4m3fn", "float8_e5m2")


@dataclass(frozen=True, slots=True)
class DtypeChoice:
    """Types of one network: `kept` is that of its weights in memory, cast block by block where `computed` differs."""

    kept: DtypeName
    computed: DtypeName
    reason: str


def unet_types(asked: DtypeSettings, facts: DeviceFacts, policy: DtypePolicy) -> DtypeChoice:
    """Choose what was asked for, else the best type that the device computes at full speed, else float32."""
    if asked.unet is not None:
        return _asked(asked.unet, _computed(asked.unet, asked, facts, policy), facts, on_device=True)
    if asked.force_fp32:
        return DtypeChoice("float32", "float32", "--force-fp32")
    if asked.force_fp16 and "float16" in policy.computes:
        return DtypeChoice("float16", "float16", "--force-fp16")
    return _preferred(facts, policy)


def vae_types(asked: DtypeSettings, facts: DeviceFacts, policy: DtypePolicy) -> DtypeChoice:
    """Choose what was asked for, else the best type that the device computes and convolves, else float32."""
    if asked.vae is not None:
        return DtypeChoice(asked.vae, asked.vae, "asked for by flag")
    if asked.force_fp32:
        return DtypeChoice("float32", "float32", "--force-fp32")
    return _preferred(replace(facts, computes_bfloat16=convolves_bfloat16(facts)), policy)


def convolves_bfloat16(facts: DeviceFacts) -> bool:
    """Return True if a network of large convolutions is faster in bfloat16 than in float32."""
    return facts.computes_bfloat16 and not facts.convolves_bfloat16_slowly


def _preferred(facts: DeviceFacts, policy: DtypePolicy) -> DtypeChoice:
    computed = {"float16": facts.computes_float16, "bfloat16": facts.computes_bfloat16}
    best = next((name for name in policy.prefers if computed.get(name, False)), None)
    if best is not None:
        return DtypeChoice(best, best, f"{facts.name} computes {best} at full speed")
    lacking = " or ".join(policy.prefers) or "any other type rightly"
    return DtypeChoice("float32", "float32", f"{facts.name} does not compute {lacking} at full speed")


def text_encoder_types(
    asked: DtypeSettings, facts: DeviceFacts, policy: DtypePolicy | None = None, *, on_device: bool
) -> DtypeChoice:
    """Choose float32 to compute in, as ComfyUI does, and float16 to store on a device, where casting is cheap.

    Text encoders with a policy of their own are stored in the best type of it, and compute in it where that is fast.
    """
    if asked.text_encoder is not None:
        return _asked(asked.text_encoder, "float32", facts, on_device=on_device)
    if policy is not None:
        choice = _preferred(facts, policy)
        computed: DtypeName = choice.computed if on_device and not asked.force_fp32 else "float32"
        return DtypeChoice(policy.prefers[0], computed, choice.reason)
    if on_device and facts.computes_float16:
        return DtypeChoice("float16", "float32", "kept as float16 on the device, computed in float32")
    return DtypeChoice("float32", "float32", "text encoders compute in float32")


def _asked(kept: DtypeName, computed: DtypeName, facts: DeviceFacts, *, on_device: bool) -> DtypeChoice:
    """Choose what was asked for, or float16 where that is float8 and the device has no such type."""
    if kept in FLOAT8 and on_device and facts.has_own_memory and not facts.keeps_float8:
        return DtypeChoice("float16", computed, f"{facts.name} has no {kept}")
    return DtypeChoice(kept, computed, "asked for by flag")


def _computed(kept: DtypeName, asked: DtypeSettings, facts: DeviceFacts, policy: DtypePolicy) -> DtypeName:
    """Return the type in which a network of type `kept` computes: no device here multiplies float8 by itself."""
    if kept not in FLOAT8:
        return kept
    return "float32" if asked.force_fp32 else _preferred(facts, policy).computed
