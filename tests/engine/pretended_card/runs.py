"""Engines on a pretended card, and what they run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from darkroom.engine.engine import Engine
from darkroom.engine.settings import DtypeSettings, EngineSettings, MemorySettings
from tests.engine.pretended_card.card import GIB, PretendedCard
from tests.engine.pretended_card.rules import CardGenerator


@contextmanager
def engine_on_card(
    base: Path,
    *,
    total_bytes: int = 80 * GIB,
    memory: MemorySettings | None = None,
    dtypes: DtypeSettings | None = None,
) -> Iterator[tuple[Engine, PretendedCard]]:
    """Yield an engine over a base directory, and its card."""
    card = PretendedCard(total_bytes)
    settings = EngineSettings(
        base_directory=base, memory=memory or MemorySettings(), dtypes=dtypes or DtypeSettings(),
        disable_all_custom_nodes=True,
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        # Torch makes no generator for the meta device, and has no other place to say what one is.
        patch.setattr(torch, "Generator", CardGenerator)
        with Engine(settings, device=card) as engine:
            yield engine, card
