"""Forms in which the kernels are launched on a card, at the sizes of real networks, for compilation ahead of time."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from triton.runtime.jit import JITFunction

import darkroom.engine.tuning.kernels as kernels
from darkroom.engine.tuning.kernels import activation, geglu, group_norm, quantise, residual_norm, rotary_heads

TYPES = ("bf16", "fp16", "fp32")


@dataclass(frozen=True)
class Form:
    """A kernel with the types of its pointers (None: not passed) and its constants; other arguments are numbers."""

    kernel: JITFunction[Any]
    name: str
    pointers: Mapping[str, str | None]
    constants: Mapping[str, Any]
    num_warps: int = 4
    least_capability: int = 80
    """Least compute capability of cards that have the number types which it writes."""

    @property
    def signature(self) -> dict[str, str]:
        """Triton's type of each argument."""
        return {name: self._type(name) for name in self.kernel.arg_names}

    @property
    def constexprs(self) -> dict[str, Any]:
        """The constants, and None for each pointer that is not passed."""
        absent = {name: None for name, kind in self.pointers.items() if kind is None}
        return {**absent, **self.constants}

    @property
    def attributes(self) -> dict[tuple[int, ...], list[list[object]]]:
        """Pointers and strides are multiples of 16, as those of networks are: kernels then read 16 bytes at a time."""
        return {
            (place,): [["tt.divisibility", 16]]
            for place, name in enumerate(self.kernel.arg_names)
            if self.signature[name].startswith("*")
            or (
                self.signature[name] == "i32" and name not in ("num_tokens", "num_heads") and not name.endswith("group")
            )
        }

    def _type(self, name: str) -> str:
        if name in self.constexprs:
            return "constexpr"
        pointer = self.pointers.get(name)
        if pointer is not None:
            return f"*{pointer}"
        return "fp32" if name.endswith("eps") else "i32"


def kernel_functions() -> Iterator[tuple[str, JITFunction[Any]]]:
    """Yield every function of the package that is launched as a kernel, with its module and name.

    Those that another function calls are compiled as part of it.
    """
    found: dict[str, JITFunction[Any]] = {}
    for module in pkgutil.iter_modules(kernels.__path__, f"{kernels.__name__}."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, JITFunction):
                found[f"{value.fn.__module__}.{name}"] = value
    called = {name for function in found.values() for name in function.fn.__code__.co_names}
    yield from ((name, value) for name, value in found.items() if value.fn.__name__ not in called)


def forms(types: tuple[str, ...] = TYPES) -> Iterator[Form]:
    """Yield all forms for tokens of these types."""
    for kind in types:
        yield from _residual_norms(kind)
        yield from _rotary_heads(kind)
        yield from _activations(kind)
        yield from _group_norms(kind)
        yield from _quantisations(kind)
        yield Form(
            geglu._gate, f"geglu {kind}", {"projected": kind, "out": kind},
            {"ROOT": geglu.ROOT_OF_HALF, "BLOCK": geglu.COLUMNS},
        )  # fmt: skip


def _residual_norms(kind: str) -> Iterator[Form]:
    nothing = dict.fromkeys(
        ("change", "gate", "scale", "shift", "weight", "bias", "change_weight", "change_bias", "total", "normed")
    )
    modulation = {"x": kind, "scale": kind, "shift": kind, "normed": kind}
    residual = {"x": kind, "change": kind, "gate": kind, "total": kind}
    constants = {
        "NORM": residual_norm.LAYER_NORM, "ONE_PLUS": False, "IS_JOINED": True, "CHANGE_NORM": residual_norm.NO_NORM,
        "CHANGE_ONE_PLUS": False, "IS_JOINED_GATE": False, "CLAMPS_CHANGE": False, "CLAMPS_SUM": True,
    }  # fmt: skip
    weighted = {"change_weight": kind, "weight": kind, "bias": kind}
    sandwich = {"NORM": residual_norm.RMS_NORM, "CHANGE_NORM": residual_norm.RMS_NORM, "CLAMPS_CHANGE": True}
    variants: list[tuple[str, dict[str, str], dict[str, Any], int]] = [
        ("norm", modulation, {}, 4096),
        ("residual", residual, {"NORM": residual_norm.NO_NORM}, 4096),
        ("both", residual | modulation, {}, 4096),
        ("weights", residual | modulation | weighted, sandwich | {"ONE_PLUS": True}, residual_norm.MAX_WIDTH),
    ]
    for name, pointers, others, block in variants:
        yield Form(
            residual_norm._residual_norm, f"residual norm {name} {kind}", nothing | pointers,
            constants | others | {"BLOCK": block}, residual_norm.warps_for(block),
        )  # fmt: skip


def _rotary_heads(kind: str) -> Iterator[Form]:
    constants = {"NORM": residual_norm.RMS_NORM, "ONE_PLUS": False, "IS_WHOLE": False, "WIDTH": 128, "HEADS": 8}
    for name, layout, table, others in (
        ("matrices", rotary_heads.MATRICES, "fp32", {"ROUNDS": False, "TABLE_HEADS": 1}),
        ("rounded matrices", rotary_heads.MATRICES, kind, {"ROUNDS": True, "TABLE_HEADS": 1}),
        (
            "all heads",
            rotary_heads.MATRICES,
            "fp32",
            {"ROUNDS": False, "TABLE_HEADS": 1, "IS_WHOLE": True, "HEADS": 64},
        ),
        ("tables of heads", rotary_heads.PAIRS, kind, {"ROUNDS": True, "TABLE_HEADS": 8}),
        ("channels", rotary_heads.CHANNELS, kind, {"ROUNDS": True, "TABLE_HEADS": 1, "HEADS": 1, "WIDTH": 2048}),
        ("halves", rotary_heads.HALVES, "fp32", {"ROUNDS": False, "TABLE_HEADS": 1, "WIDTH": 64, "NUM_PAIRS": 16}),
        ("no turn", rotary_heads.NO_TURN, None, {"ROUNDS": False, "TABLE_HEADS": 1, "NORM": residual_norm.LAYER_NORM}),
    ):
        all_constants: dict[str, Any] = constants | {"LAYOUT": layout} | others
        width = all_constants["WIDTH"]
        num_pairs = all_constants.setdefault("NUM_PAIRS", width // 2)
        all_constants |= {"P": num_pairs, "REST": max(1, width - 2 * num_pairs)}
        has_sines = layout not in (rotary_heads.NO_TURN, rotary_heads.MATRICES)
        has_bias = layout == rotary_heads.NO_TURN
        of_one = {"x": kind, "weight": kind, "bias": kind if has_bias else None, "out": kind}
        pointers = of_one | {f"{part}_second": pointer for part, pointer in of_one.items()}
        pointers |= {"tables": table, "sines": table if has_sines else None}
        warps = residual_norm.warps_for(all_constants["HEADS"] * width)
        yield Form(rotary_heads._rotary_heads, f"rotary heads {name} {kind}", pointers, all_constants, warps)


def _activations(kind: str) -> Iterator[Form]:
    shared = {"ROOT": activation.ROOT_OF_HALF, "ROOTS": activation.TWO_ROOTS, "BLOCK": activation.COLUMNS}
    for name, number in activation.KINDS.items():
        for has_value in (True, False):
            pointers = {
                "gate": kind, "value": kind if has_value else None, "copied": None if has_value else kind, "out": kind,
            }  # fmt: skip
            constants = shared | {"KIND": number, "CLAMPS": has_value}
            yield Form(activation._activate, f"activation {name} {has_value} {kind}", pointers, constants)


def _group_norms(kind: str) -> Iterator[Form]:
    tile = {"BP": group_norm.CELLS, "BC": group_norm.CHANNELS}
    sums = {"x": kind, "total": "fp32", "squares": "fp32"}
    yield Form(group_norm._sums, f"group norm sums {kind}", sums, tile | {"SLICE": group_norm.SLICE_CELLS})
    scaled = {"x": kind, "factor": "fp32", "offset": "fp32", "out": kind}
    yield Form(group_norm._scale, f"group norm scale {kind}", scaled, tile | {"WITH_SILU": True})


def _quantisations(kind: str) -> Iterator[Form]:
    rows = {"LARGEST": 448.0, "LEAST": 1e-12, "ROUNDER": quantise.ROUNDER, "BLOCK": quantise.MOST_COLUMNS}
    for codes, capability in (("i8", 80), ("fp8e4nv", 89)):
        yield Form(
            quantise._quantise, f"quantise {codes} {kind}", {"x": kind, "codes": codes, "scales": "fp32"},
            rows | {"IS_INTEGER": codes == "i8"}, least_capability=capability,
        )  # fmt: skip
    product = {"product": "i32", "row_scales": "fp32", "column_scales": "fp32", "bias": kind, "out": kind}
    yield Form(quantise._scale, f"scale of a product {kind}", product, {"HAS_BIAS": True, "BLOCK": 1024})
    blocks = {"LARGEST": 448.0, "LEAST": 1e-12, "BLOCKS": quantise.BLOCKS}
    wide = {"x": kind, "codes": "fp8e4nv", "scales": "u8"}
    yield Form(quantise._quantise_mxfp8, f"quantise mxfp8 {kind}", wide, blocks, least_capability=120)
    narrow = {"x": kind, "second": "fp32", "codes": "u8", "scales": "fp8e4nv"}
    yield Form(quantise._quantise_nvfp4, f"quantise nvfp4 {kind}", narrow, blocks, least_capability=120)
