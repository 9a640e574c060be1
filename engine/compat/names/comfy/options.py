"""`comfy.options`: whether flags are read from the command line. Here they always are."""

from __future__ import annotations

args_parsing = True


def enable_args_parsing(enable: bool = True) -> None:
    """Nothing to turn on."""
    return
