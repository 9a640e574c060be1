"""Callers who may send jobs."""

from __future__ import annotations

import pytest
from pydantic import SecretStr

from darkroom.worker.errors import Forbidden, ScopeMissing, Unauthorized, WrongKey
from darkroom.worker.guard.auth import Gatekeeper, require
from darkroom.worker.guard.identity.caller import Identity
from darkroom.worker.guard.identity.loopback import direct_host, is_own_name
from darkroom.worker.settings.access import AuthConfig
from darkroom.worker.settings.api_keys import ALL_SCOPES, CUSTOMER_SCOPES, Scope, parse_keys
from darkroom.worker.settings.loopback import is_loopback

PUBLIC = "203.0.113.7"
HOST = ("host", "127.0.0.1:8000")


def gatekeeper(
    token: str = "", keys: tuple[str, ...] = (), unsecured: bool = False, trusts_loopback: bool = True
) -> Gatekeeper:
    config = AuthConfig(SecretStr(token), parse_keys(keys), (), unsecured, trusts_loopback, "art.example")
    return Gatekeeper(config, SecretStr("own-key"))


def check(gate: Gatekeeper, peer: str | None, authorization: str = "", has_vast_envelope: bool = False) -> Identity:
    headers = [HOST, ("authorization", authorization)] if authorization else [HOST]
    return gate.check(peer, headers, has_vast_envelope=has_vast_envelope)


def test_without_token_and_keys_everyone_is_a_customer() -> None:
    assert check(gatekeeper(), PUBLIC) == Identity("", PUBLIC, CUSTOMER_SCOPES)


def test_with_the_token_a_bare_request_from_outside_is_refused() -> None:
    with pytest.raises(Unauthorized):
        check(gatekeeper("mt"), PUBLIC)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
def test_this_machine_is_the_operator(host: str) -> None:
    assert check(gatekeeper("mt", ("k",)), host).scopes == ALL_SCOPES
    assert check(gatekeeper(), host).is_admin


@pytest.mark.parametrize("host", [None, "", "testclient", "10.0.0.1", "127.0.0.1.example.com"])
def test_other_hosts_are_not_this_machine(host: str | None) -> None:
    assert not is_loopback(host)


def test_a_key_opens_and_the_master_token_is_none() -> None:
    gate = gatekeeper("mt", ("first", "two:second"))
    assert check(gate, PUBLIC, "Bearer second") == Identity("two", PUBLIC, CUSTOMER_SCOPES)
    assert check(gate, PUBLIC, "bearer  first").key_name.startswith("key-")
    for wrong in ("Bearer mt", "Bearer ", "second", "Basic second", "Bearer secon", "Bearer sécond", "Bearer two"):
        with pytest.raises(Unauthorized):
            check(gate, PUBLIC, wrong)


def test_a_wrong_key_is_distinguished_from_a_missing_one() -> None:
    gate = gatekeeper("", ("k",))
    with pytest.raises(WrongKey):
        check(gate, PUBLIC, "Bearer wrong")
    for missing in ("", "Basic k", "Bearer "):
        with pytest.raises(Unauthorized) as caught:
            check(gate, PUBLIC, missing)
        assert not isinstance(caught.value, WrongKey)


def test_an_envelope_excuses_only_where_its_signature_is_checked() -> None:
    of_vast = check(gatekeeper("mt"), PUBLIC, "Bearer of-the-platforms-client", has_vast_envelope=True)
    assert of_vast == Identity("", PUBLIC, CUSTOMER_SCOPES)
    with pytest.raises(Unauthorized):
        check(gatekeeper("", ("k",)), PUBLIC, has_vast_envelope=True)


def test_unsecured_opens_everything() -> None:
    assert check(gatekeeper("mt", ("k",), unsecured=True), PUBLIC).is_admin


@pytest.mark.parametrize("header", ["Forwarded", "X-Forwarded-For", "x_forwarded_proto", "X-Real-IP", "Via", "CF-Ray"])
def test_what_a_proxy_passed_on_does_not_come_from_this_machine(header: str) -> None:
    for own in ("127.0.0.1", "::1"):
        assert direct_host(own, ["host", header]) is None
        assert direct_host(own, ["host", "user-agent", "x-request-id", "traceparent", "x-include-comfyui-response"])


def test_this_machine_may_be_asked_for_a_key_and_the_fronts_own_key_always_opens() -> None:
    gate = gatekeeper("", ("k",), trusts_loopback=False)
    with pytest.raises(Unauthorized):
        check(gate, "127.0.0.1")
    assert check(gate, "::1", "Bearer k").scopes == CUSTOMER_SCOPES
    assert check(gate, "::1", "Bearer own-key").is_admin
    assert not check(gatekeeper(trusts_loopback=False), "::1").is_admin


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:80", "[::1]:8000", "[::1]", "localhost:8000", "LocalHost", "Art.Example:443"]
)
def test_names_of_the_worker_are_its_own(host: str) -> None:
    assert is_own_name(host, "art.example")


@pytest.mark.parametrize(
    "host",
    ["", ":80", "evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "::1", "127.0.0.1:x", "[::1"]
    + ["a@127.0.0.1", "127.0.0.1/x", "127.0.0.1#x", "127.1", "0x7f.0.0.1", "2130706433", "localhost.", "127.0.0.1?x"],
)
def test_other_names_are_not(host: str) -> None:
    assert not is_own_name(host) and not is_own_name(host, "art.example")


def test_every_host_header_has_to_be_the_workers() -> None:
    for hosts in (["evil.example"], ["127.0.0.1", "evil.example"], ["evil.example", "127.0.0.1"], []):
        headers = [("host", host) for host in hosts]
        with pytest.raises(Forbidden):
            gatekeeper().check("127.0.0.1", headers)
        with pytest.raises(Unauthorized):
            gatekeeper("", ("k",)).check("127.0.0.1", headers)
        assert gatekeeper("", ("k",)).check("127.0.0.1", [*headers, ("authorization", "Bearer k")])


def test_a_missing_scope_is_named() -> None:
    with pytest.raises(ScopeMissing, match="admin") as caught:
        require(Identity("shop", PUBLIC, CUSTOMER_SCOPES), Scope.ADMIN)
    assert caught.value.fields == {"scope": "admin"}
    with pytest.raises(Unauthorized, match="operator"):
        require(Identity("", PUBLIC, CUSTOMER_SCOPES), Scope.ADMIN)


@pytest.mark.parametrize(
    ("header", "shown"),
    [
        (("authorization", "Basic c2VjcmV0"), "got the scheme Basic"),
        (("authorization", "hunter"), "got another scheme or none"),
        (("authorization", "Bearer "), "got an empty one"),
        (("x-api-key", "hunter"), "got the header x-api-key"),
        (("accept", "*/*"), "Bearer <key>$"),
    ],
)
def test_a_refusal_names_what_came_instead_of_a_key_and_not_the_key(header: tuple[str, str], shown: str) -> None:
    with pytest.raises(Unauthorized, match=shown) as caught:
        gatekeeper("", ("k",)).check(PUBLIC, [header])
    assert "hunter" not in caught.value.message and "c2VjcmV0" not in caught.value.message
    assert "Authorization: Bearer <key>" in caught.value.message
