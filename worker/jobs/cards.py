"""Memory of well-known graphics cards, by which a plan may name one. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

GIB: Final = 1 << 30
CARDS: Final[Mapping[str, int]] = {
    "rtx2080ti": 11, "rtx3060": 12, "rtx3070": 8, "rtx3080": 10, "rtx3090": 24, "rtx4060": 8, "rtx4060ti": 16,
    "rtx4070": 12, "rtx4080": 16, "rtx4090": 24, "rtx5070": 12, "rtx5080": 16, "rtx5090": 32, "rtx6000ada": 48,
    "rtxpro6000": 96, "t4": 16, "l4": 24, "l40": 48, "l40s": 48, "a10": 24, "a10g": 24, "a4000": 16, "a5000": 24,
    "a6000": 48, "a40": 48, "v100": 16, "a10040gb": 40, "a10080gb": 80, "a100": 80, "h100": 80, "h200": 141,
    "b200": 180,
}  # fmt: skip
"""Memory in GiB by the card's name in lower case without its maker, blanks and dashes."""


def card_bytes(name: str) -> int | None:
    """Return the memory of a card, None for an unknown one."""
    key = re.sub(r"[^a-z0-9]|nvidia|geforce|tesla", "", name.lower())
    return CARDS[key] * GIB if key in CARDS else None
