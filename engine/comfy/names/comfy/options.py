"""`comfy.options`: parsing of command-line flags, which is always on here."""

from __future__ import annotations

args_parsing = True


def enable_args_parsing(enable: bool = True) -> None:
    """Do nothing: parsing of flags is always on."""
    return
