"""Limits of the requests of one caller."""

from __future__ import annotations

import threading
from fractions import Fraction

import pytest

from darkroom.worker.errors import LimitReached, RequestRejected
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.guard.rate_limits import EXEMPT, PROXIED, RateLimits, caller_name, window_of
from darkroom.worker.settings.api_keys import ALL_SCOPES, CUSTOMER_SCOPES
from darkroom.worker.settings.jobs import CallerLimits


@pytest.mark.parametrize(
    ("identity", "name"),
    [
        (Identity("shop", "203.0.113.7", CUSTOMER_SCOPES), "key:shop"),
        (Identity("shop", "", CUSTOMER_SCOPES), "key:shop"),
        (Identity("ops", "203.0.113.7", ALL_SCOPES), EXEMPT),
        (Identity("", "203.0.113.7", ALL_SCOPES), "address:203.0.113.7"),
        (Identity("", "::ffff:203.0.113.7", ALL_SCOPES), "address:203.0.113.7"),
        (Identity("", "2001:db8:1:2:3:4:5:6", ALL_SCOPES), "address:2001:db8:1:2::/64"),
        (Identity("", "", ALL_SCOPES), PROXIED),
        (Identity("", "127.0.0.1", ALL_SCOPES), EXEMPT),
        (Identity("shop", "127.0.0.1", CUSTOMER_SCOPES), "key:shop"),
    ],
)
def test_a_caller_is_its_key_else_its_address(identity: Identity, name: str) -> None:
    assert caller_name(identity) == name


def test_requests_over_the_rate_are_refused_until_the_window_has_passed() -> None:
    rates = RateLimits(CallerLimits(requests_per_second=0.05))
    rates.count_request("key:a")
    with pytest.raises(LimitReached) as refused:
        rates.count_request("key:a")
    assert {"code": "limit_reached", "limit": "requests_per_second", "value": 2, "allowed": 1}.items() <= (
        refused.value.as_json().items()
    )
    assert 1 <= refused.value.retry_after_seconds <= 20
    rates.count_request("key:b")
    for _ in range(100):
        rates.count_request(EXEMPT)


def test_pixel_steps_of_a_minute_are_summed() -> None:
    rates = RateLimits(CallerLimits(pixel_steps_per_minute=1000))
    rates.spend_pixel_steps("key:a", 600)
    with pytest.raises(LimitReached) as refused:
        rates.spend_pixel_steps("key:a", 600)
    fields = refused.value.fields
    assert (fields["limit"], fields["value"], fields["allowed"]) == ("pixel_steps_per_minute", 1200, 1000)
    assert 1 <= refused.value.retry_after_seconds <= 60
    rates.spend_pixel_steps("key:a", 400)
    rates.spend_pixel_steps("key:b", 1000)


def test_what_could_never_be_within_the_rate_is_a_bad_request() -> None:
    with pytest.raises(RequestRejected) as refused:
        RateLimits(CallerLimits(pixel_steps_per_minute=1000)).spend_pixel_steps("key:a", 1001)
    (problem,) = refused.value.problems
    assert problem.type == "pixel_steps_per_minute" and problem.allowed == {"maximum": 1000}


def test_without_limits_nothing_is_counted() -> None:
    before = threading.active_count()
    rates = RateLimits(CallerLimits())
    for _ in range(1000):
        rates.count_request("key:a")
        rates.spend_pixel_steps("key:a", 10**12)
    assert not rates.counts_pixel_steps and threading.active_count() <= before


@pytest.mark.parametrize("rate", [0.001, 1 / 60, 0.1, 0.5, 1, 2.5, 3, 10, 1000])
def test_a_rate_is_a_whole_number_in_whole_seconds(rate: float) -> None:
    number, seconds = window_of(rate)
    assert number >= 1 and seconds >= 1
    assert float(Fraction(number, seconds)) == pytest.approx(rate, rel=0.01)
