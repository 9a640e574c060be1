"""Request to measure the strategies: which model, and which image. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from darkroom.engine.tuning.outcome import Fields

MAX_SIDE_PX, MAX_STEPS, MAX_SETTLE_SECONDS = 4096, 1000, 3600.0


@dataclass(frozen=True, slots=True)
class TuningRequest:
    """Image to measure with: a checkpoint's, or that of a family's random network of a scale.

    `settle_seconds` is how long each strategy may prepare in the background, `turns_seconds` how long two speeds are
    compared, in three turns at the least; 0 is a single turn. No strategy is begun
    after `budget_seconds`. `is_full_size`: the network is one that
    users have.
    """

    checkpoint: str | None = None
    family: str | None = None
    scale: str = "small"
    width_px: int = 512
    height_px: int = 512
    num_steps: int = 8
    cfg: float = 7.0
    sampler_name: str = "euler"
    scheduler: str = "normal"
    settle_seconds: float = 120.0
    turns_seconds: float = 1.5
    budget_seconds: float = MAX_SETTLE_SECONDS

    @property
    def is_full_size(self) -> bool:
        return self.checkpoint is not None or self.scale == "full"

    @property
    def name(self) -> str:
        return self.checkpoint or f"random:{self.family or 'default'}:{self.scale}"


def read_tuning_request(body: Fields) -> TuningRequest:
    """Parse the JSON form. Raises ValueError, naming the field, what was wrong, and what is allowed."""
    fields = TuningRequest.__dataclass_fields__
    unknown = [name for name in body if name not in fields]
    if unknown:
        raise ValueError(f"{unknown[0]}: unknown field; expected {', '.join(fields)}")
    for name in ("checkpoint", "family", "scale", "sampler_name", "scheduler"):
        if name in body and not isinstance(body[name], (str, type(None))):
            raise ValueError(f"{name}: no text; got {body[name]!r}")
    for name, least, most in (
        ("width_px", 16, MAX_SIDE_PX),
        ("height_px", 16, MAX_SIDE_PX),
        ("num_steps", 2, MAX_STEPS),
        ("cfg", 0, 100),
        ("settle_seconds", 0, MAX_SETTLE_SECONDS),
        ("turns_seconds", 0, MAX_SETTLE_SECONDS),
        ("budget_seconds", 0, MAX_SETTLE_SECONDS),
    ):
        value = body.get(name, least)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not least <= value <= most:
            raise ValueError(f"{name}: out of range; got {value!r}, expected {least} to {most}")
    return TuningRequest(**body)
