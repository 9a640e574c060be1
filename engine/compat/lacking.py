"""Names of ComfyUI that this engine does not have: they can be imported, and say so as soon as they are used.

An import at the top of a pack must not cost all its nodes because one of them needs what is not here; but nothing may
look as if it worked either. So such a name is a class whose every use raises `NotSupported`.
"""

from __future__ import annotations

from typing import Any, NoReturn

from engine.compat.host import HOST
from engine.errors import CallerError


class NotSupported(CallerError):
    """A custom node uses something of ComfyUI that this engine cannot do. `pack` is "" when it cannot be told."""

    code = "not_supported"

    def __init__(self, name: str, pack: str = "") -> None:
        super().__init__(f"{pack or 'a custom node'} uses {name}, which this engine does not support")
        self.name = name
        self.pack = pack


def not_supported(name: str) -> NotSupported:
    """The error for the pack whose code runs; the name is noted as one it asked for."""
    host = HOST.get()
    host.ask(name)
    return NotSupported(name, host.calling_pack())


class Lacking(type):
    """The class of placeholders: classes that can be named, subclassed and asked `isinstance`, and nothing else.

    They equal nothing but themselves: no value of this engine is one of ComfyUI's that it does not have.
    """

    lacking_name: str

    def __call__(cls, *args: Any, **kwargs: Any) -> NoReturn:
        raise not_supported(cls.lacking_name)

    def __getattr__(cls, name: str) -> type:
        """A part of what is lacking is lacking too; it is noted as asked for, and using it raises."""
        if name.startswith("__"):
            raise AttributeError(name)
        part = f"{cls.lacking_name}.{name}"
        HOST.get().ask(part)
        return lacking(part)

    def __bool__(cls) -> bool:
        raise not_supported(cls.lacking_name)

    def __setattr__(cls, name: str, value: Any) -> None:
        if not name.startswith("__") and "lacking_name" in vars(cls):  # the placeholder itself, not a class made of it
            raise not_supported(f"{cls.lacking_name}.{name}")
        super().__setattr__(name, value)

    def __iter__(cls) -> NoReturn:
        raise not_supported(cls.lacking_name)

    def __instancecheck__(cls, instance: Any) -> bool:
        return False

    def __getitem__(cls, key: Any) -> Any:
        return cls  # an annotation such as Name[int]


def lacking(name: str) -> type:
    """A placeholder for one of ComfyUI's names."""
    return Lacking(name.rpartition(".")[2], (), {"lacking_name": name, "__module__": __name__})
