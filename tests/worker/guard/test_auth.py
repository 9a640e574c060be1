"""Who may send jobs."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from worker.errors import Unauthorized
from worker.guard.auth import Gatekeeper
from worker.guard.loopback import ITSELF, direct_host, is_loopback
from worker.setting_slices import AuthConfig

PUBLIC = "203.0.113.7"


def gatekeeper(
    token: str = "", keys: tuple[str, ...] = (), unsecured: bool = False, trusts_loopback: bool = True
) -> Gatekeeper:
    secrets = tuple(SecretStr(key) for key in keys)
    return Gatekeeper(AuthConfig(SecretStr(token), secrets, unsecured, trusts_loopback))


def test_without_token_and_keys_everyone_may() -> None:
    gatekeeper().check(PUBLIC, None, False)


def test_with_the_token_a_bare_request_from_outside_is_refused() -> None:
    with pytest.raises(Unauthorized):
        gatekeeper("mt").check(PUBLIC, None, False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_this_machine_may_always(host: str) -> None:
    gatekeeper("mt", ("k",)).check(host, None, False)


@pytest.mark.parametrize("host", [None, "", "testclient", "10.0.0.1", "127.0.0.1.example.com"])
def test_other_hosts_are_not_this_machine(host: str | None) -> None:
    assert not is_loopback(host)


def test_a_key_opens_and_the_master_token_is_none() -> None:
    gate = gatekeeper("mt", ("first", "second"))
    gate.check(PUBLIC, "Bearer second", False)
    gate.check(PUBLIC, "bearer  first", False)
    for wrong in ("Bearer mt", "Bearer ", "second", "Basic second", "Bearer secon", "Bearer sécond"):
        with pytest.raises(Unauthorized):
            gate.check(PUBLIC, wrong, False)


def test_an_envelope_excuses_only_where_its_signature_is_checked() -> None:
    gatekeeper("mt").check(PUBLIC, None, True)
    with pytest.raises(Unauthorized):
        gatekeeper("", ("k",)).check(PUBLIC, None, True)


def test_unsecured_opens_everything() -> None:
    gatekeeper("mt", ("k",), unsecured=True).check(PUBLIC, None, False)


@pytest.mark.parametrize("header", ["Forwarded", "X-Forwarded-For", "x-forwarded-proto", "X-Real-IP", "Via"])
def test_what_a_proxy_passed_on_does_not_come_from_this_machine(header: str) -> None:
    for own in ("127.0.0.1", "::1", ITSELF):
        assert direct_host(own, ["host", header]) is None
        assert direct_host(own, ["host", "user-agent"]) == own


def test_this_machine_may_be_asked_for_a_key_and_the_worker_itself_never_is() -> None:
    gate = gatekeeper("", ("k",), trusts_loopback=False)
    with pytest.raises(Unauthorized):
        gate.check("127.0.0.1", None, False)
    with pytest.raises(Unauthorized):
        gate.check_admin("::1", None)
    gate.check("::1", "Bearer k", False)
    gate.check(ITSELF, None, False)
