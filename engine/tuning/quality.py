"""Quality: the largest difference of a tuned image from the plain one. Pure."""

from __future__ import annotations

from enum import StrEnum

from darkroom.contract.quality import DEFAULT_QUALITY

SAME_TOLERANCE = 1e-3  # relative L2 of latents, as for parity with ComfyUI
DRAFT_TOLERANCE = 0.25


class Quality(StrEnum):
    """Requested quality, the closest first.

    `exact` allows strategies whose latents have the plain path's bits, `same` those within the parity tolerance (or
    what rounding makes in the types that the network computes in, where that is more: `choose.py`),
    `draft` those that trade likeness for speed. `close` has the strategies of `same`, but its bits may depend on the
    other runs whose evaluations are in one batch with this one's; each evaluation is within the parity tolerance.
    """

    EXACT = "exact"
    SAME = "same"
    CLOSE = "close"
    DRAFT = "draft"

    @property
    def tolerance(self) -> float:
        """Largest relative L2 error of the latents against the plain path's; 0 means equal bits."""
        return {Quality.EXACT: 0.0, Quality.DRAFT: DRAFT_TOLERANCE}.get(self, SAME_TOLERANCE)

    @property
    def tolerance_of_company(self) -> float:
        """Largest relative L2 error that other runs in one batch may cause in an evaluation; 0 means equal bits."""
        return SAME_TOLERANCE if self in (Quality.CLOSE, Quality.DRAFT) else 0.0

    def allows(self, other: Quality) -> bool:
        """Return True where a strategy of quality `other` may be used for a request of this one."""
        order = list(Quality)
        return order.index(other) <= order.index(self)


DEFAULT = Quality(DEFAULT_QUALITY)


def read_quality(value: object) -> Quality:
    """Parse a request's quality; None is the default. Raises ValueError, naming what is allowed."""
    if value is None:
        return DEFAULT
    try:
        return Quality(str(value))
    except ValueError:
        allowed = ", ".join(Quality)
        raise ValueError(f"quality: unknown; got {value!r}, expected one of {allowed}") from None
