"""Rate limits per caller: requests per second, and pixels times steps per minute.

Callers are identified by their key, else by their address. The counters are in the memory of one `RateLimits` and are
lost at a restart. The library is imported only when a limit is set, since the import takes 0.1 s.
"""

from __future__ import annotations

import ipaddress
import math
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from darkroom.worker.errors import LimitReached, Problem, RequestRejected
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.settings.jobs import CallerLimits
from darkroom.worker.settings.loopback import is_loopback

if TYPE_CHECKING:
    from limits import RateLimitItem
    from limits.strategies import SlidingWindowCounterRateLimiter

EXEMPT: Final = ""
KEY_PREFIX: Final = "key:"
PROXIED: Final = "proxied"
"""The shared name of all callers without a key whose address a proxy hides; they have one limit together."""

IPV6_PREFIX: Final = 64  # prefix length that a provider assigns to one customer
MAX_WINDOW_SECONDS: Final = 60


def caller_name(identity: Identity) -> str:
    """Return the name under which a caller is counted, or `EXEMPT` for a caller without limits.

    Exempt are keys with the admin scope, and callers without a key on this machine itself who may use the worker. One
    who may not is perhaps a stranger behind a proxy that adds no header, who guesses keys.
    """
    is_here = is_loopback(identity.address) and bool(identity.scopes)
    is_operator = identity.is_admin if identity.key_name else is_here
    if is_operator:
        return EXEMPT
    if identity.key_name:
        return f"{KEY_PREFIX}{identity.key_name}"
    return f"address:{_network_of(identity.address)}" if identity.address else PROXIED


def key_name_of(caller: str) -> str:
    """Return the name of the key of a caller; empty for one without a key."""
    return caller.removeprefix(KEY_PREFIX) if caller.startswith(KEY_PREFIX) else ""


def _network_of(address: str) -> str:
    """Return an IPv4 address, or the network of an IPv6 address, whose owner could use a new one for every request."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_PREFIX), strict=False))


class RateLimits:
    """Sliding-window counters of each caller's requests and pixel steps."""

    def __init__(self, config: CallerLimits) -> None:
        self._requests: RateLimitItem | None = None
        self._pixel_steps: RateLimitItem | None = None
        self._limiter: SlidingWindowCounterRateLimiter | None = None
        if config.requests_per_second is None and config.pixel_steps_per_minute is None:
            return
        from limits import RateLimitItemPerMinute, RateLimitItemPerSecond
        from limits.storage import MemoryStorage
        from limits.strategies import SlidingWindowCounterRateLimiter

        self._limiter = SlidingWindowCounterRateLimiter(MemoryStorage())
        if config.requests_per_second is not None:
            self._requests = RateLimitItemPerSecond(*window_of(config.requests_per_second), "requests_per_second")
        if config.pixel_steps_per_minute is not None:
            self._pixel_steps = RateLimitItemPerMinute(config.pixel_steps_per_minute, 1, "pixel_steps_per_minute")

    def count_request(self, caller: str) -> None:
        """Count one request. Raises LimitReached if it exceeds the caller's rate."""
        if self._requests is not None and caller != EXEMPT:
            self._spend(self._requests, caller, 1)

    @property
    def counts_pixel_steps(self) -> bool:
        return self._pixel_steps is not None

    def spend_pixel_steps(self, caller: str, pixel_steps: int) -> None:
        """Count pixels times steps of a caller.

        Raises LimitReached if the last minute leaves no room, or RequestRejected if the amount alone exceeds the limit.
        """
        item = self._pixel_steps
        if item is None or caller == EXEMPT:
            return
        if pixel_steps > item.amount:
            message = f"pixels times steps: too many; got {pixel_steps}, expected at most {item.amount} a minute"
            allowed, received = {"maximum": item.amount}, {"received": pixel_steps}
            problem = Problem(message, field="input", type=item.namespace, allowed=allowed, extra=received)
            raise RequestRejected([problem])
        self._spend(item, caller, max(1, pixel_steps))

    def _spend(self, item: RateLimitItem, caller: str, cost: int) -> None:
        assert self._limiter is not None
        if self._limiter.hit(item, caller, cost=cost):
            return
        used = item.amount - self._limiter.get_window_stats(item, caller).remaining
        window_seconds = item.get_expiry()
        # The counter has no times, so usage is assumed to leave the window evenly.
        wait = window_seconds * (used + cost - item.amount) / max(1, used)
        raise LimitReached(
            item.namespace,
            used + cost,
            item.amount,
            unit=f"in {window_seconds} s",
            retry_after_seconds=min(max(1.0, math.ceil(wait)), float(window_seconds)),
        )


def window_of(per_second: float) -> tuple[int, int]:
    """Convert a rate to a whole number of requests in a whole number of seconds.

    >>> window_of(2.5)
    (5, 2)
    """
    if per_second < 1 / MAX_WINDOW_SECONDS:
        return 1, math.ceil(1 / per_second)
    rate = Fraction(per_second).limit_denominator(MAX_WINDOW_SECONDS)
    return rate.numerator, rate.denominator
