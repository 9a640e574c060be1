"""Placeholders for names of ComfyUI that this engine lacks: they can be imported, and raise when they are used.

An import at the top of a pack must not disable all its nodes because one of them needs a missing name, and a missing
name must never appear to work. Such a name is therefore a class whose every use raises `NotSupported`.
"""

from __future__ import annotations

from typing import NoReturn

from darkroom.contract.errors import CallerError
from darkroom.engine.comfy.host import HOST

COMPUTING_ROOTS = frozenset({"comfy", "comfy_extras", "nodes"})
IN_VAIN = frozenset(
    {
        *(
            f"comfy.model_management.{name}"
            for name in (
                "current_stream", "get_torch_device", "load_models_gpu", "soft_empty_cache", "text_encoder_device",
                "text_encoder_offload_device", "unet_offload_device", "vae_device", "vae_offload_device",
            )
        ),
        "comfy.gligen.Gligen._set_position",  # for batches of other sizes, which are an error without it
        "comfy.model_patcher.ModelPatcherDynamic._load_list",
        "comfy.sd.load_state_dict_guess_config",
    }
)  # fmt: skip
"""Functions of ComfyUI's that packs may replace although the engine does not call them, as that changes no result.

They choose where weights are kept, which the engine decides itself.
"""


class NotSupported(CallerError):
    """Use of a part of ComfyUI that this engine does not support. `pack` is "" when the pack is unknown."""

    code = "not_supported"

    def __init__(self, name: str, pack: str = "") -> None:
        super().__init__(f"{pack or 'a custom node'} uses {name}, which this engine does not support")
        self.name = name
        self.pack = pack


def not_supported(name: str) -> NotSupported:
    """Return the error for the pack whose code runs, and record the name as used by it."""
    host = HOST.get()
    host.ask(name)
    return NotSupported(name, host.calling_pack())


def leave_to_pack(name: str) -> None:
    """Accept the replacement of a name that only its pack will call, and record that the engine does not.

    While a pack is imported it may wrap the server's messages and the bookkeeping of prompts, which its nodes do
    without; what is `IN_VAIN` it may replace at any time. What computes is never replaced in vain. Raises
    `NotSupported` for that, and in a pack that runs.
    """
    host = HOST.get()
    if name not in IN_VAIN and (not host.importing or name.partition(".")[0] in COMPUTING_ROOTS):
        raise not_supported(f"replacing {name}")
    host.ask(f"replacing {name}")


class MissingSymbol(type):
    """Metaclass of placeholders: they can be named, subclassed and used in `isinstance`, and nothing else.

    A placeholder equals only itself: no value of this engine is a ComfyUI value that it lacks.
    """

    symbol_name: str

    def __call__(cls, *args: object, **kwargs: object) -> type:
        """Raise `NotSupported`; while a pack is imported, return a placeholder for what the call would give.

        What a module makes of a missing name when it is imported (a device, a decorated class) concerns the nodes
        that use it, not the whole pack.
        """
        host = HOST.get()
        if host.importing:
            host.ask(cls.symbol_name)
            return missing_symbol(f"{cls.symbol_name}()")
        raise not_supported(cls.symbol_name)

    def __getattr__(cls, name: str) -> type:
        """Return a placeholder for a part of a missing name, and record it as used."""
        if name.startswith("__"):
            raise AttributeError(name)
        part = f"{cls.symbol_name}.{name}"
        HOST.get().ask(part)
        return missing_symbol(part)

    def __bool__(cls) -> bool:
        raise not_supported(cls.symbol_name)

    def __setattr__(cls, name: str, value: object) -> None:
        if not name.startswith("__") and "symbol_name" in vars(cls):  # the placeholder itself, not a class made of it
            full = f"{cls.symbol_name}.{name}"
            if full not in IN_VAIN:
                raise not_supported(full)
            leave_to_pack(full)
        super().__setattr__(name, value)

    def __iter__(cls) -> NoReturn:
        raise not_supported(cls.symbol_name)

    def __instancecheck__(cls, instance: object) -> bool:
        return False

    def __getitem__(cls, key: object) -> object:
        return cls  # an annotation such as Name[int]


def missing_symbol(name: str) -> type:
    """Return a placeholder for one of ComfyUI's names."""
    return MissingSymbol(name.rpartition(".")[2], (), {"symbol_name": name, "__module__": __name__})
