"""Vast's envelope: what is refused how, and whose signature counts."""

from __future__ import annotations

import base64
import json
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from darkroom.worker.autoscaler.envelope import EnvelopeRejected, SignatureRejected
from darkroom.worker.errors import NotReady, http_status
from darkroom.worker.integrations.vast.envelope import (
    EnvelopeOpener,
    is_same_url,
    is_signed,
    parse_envelope,
    signed_text,
)
from darkroom.worker.integrations.vast.public_key import PublicKeySource
from darkroom.worker.settings.platforms import VastTiming

URL = "https://203.0.113.5:31000"
PAYLOAD = {"input": {"modifier": "Text2Image", "modifications": {"prompt": "x"}}}


@pytest.fixture(scope="module")
def private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def sign(key: rsa.RSAPrivateKey, url: str = URL) -> str:
    text = '{\n    "url": ' + json.dumps(url) + "\n}"
    return base64.b64encode(key.sign(text.encode(), padding.PKCS1v15(), hashes.SHA256())).decode()


def envelope(signature: str = "", **changes: Any) -> dict[str, Any]:
    auth = {"cost": "100", "endpoint": "e", "reqnum": 1, "request_idx": 2, "signature": signature, "url": URL, "x": 1}
    return {"auth_data": auth, "payload": PAYLOAD, "session_id": None} | changes


def test_gives_the_payload() -> None:
    assert parse_envelope(envelope(), is_unsecured=False).payload == PAYLOAD


@pytest.mark.parametrize("name", ["auth_data", "payload"])
def test_a_missing_part_is_named(name: str) -> None:
    body = envelope()
    del body[name]
    with pytest.raises(EnvelopeRejected) as caught:
        parse_envelope(body, is_unsecured=False)
    assert caught.value.body == {name: "field missing"} and http_status(EnvelopeRejected) == 422


def test_missing_auth_keys_are_all_named() -> None:
    with pytest.raises(EnvelopeRejected) as caught:
        parse_envelope(envelope(auth_data={"url": URL, "request_idx": 3}), is_unsecured=False)
    assert caught.value.body == {
        "auth_data": dict.fromkeys(("cost", "endpoint", "reqnum", "signature"), "missing parameter")
    }


def test_partial_auth_data_is_taken_when_unsecured() -> None:
    body = envelope(auth_data={"url": URL, "request_idx": 3})
    assert parse_envelope(body, is_unsecured=True).payload == PAYLOAD


@pytest.mark.parametrize("wrong", [{"payload": []}, {"auth_data": "x"}, {"payload": None}])
def test_parts_that_are_no_objects_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(EnvelopeRejected):
        parse_envelope(envelope(**wrong), is_unsecured=False)


def test_the_signed_text_is_written_as_vast_writes_it() -> None:
    assert signed_text("http://a") == b'{\n    "url": "http://a"\n}'


def test_only_the_keys_own_signature_of_this_url_counts(private_key: rsa.RSAPrivateKey) -> None:
    public = private_key.public_key()
    assert is_signed(public, URL, sign(private_key))
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    for url, signature in [
        (URL, sign(other)),
        ("http://other", sign(private_key)),
        (URL, ""),
        (URL, "not base64!"),
        (URL, None),
        (None, sign(private_key)),
    ]:
        assert not is_signed(public, url, signature)


def serving(texts: dict[str, str], asked: list[str]) -> httpx.AsyncClient:
    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(str(request.url))
        text = texts.get(request.url.host)
        return httpx.Response(503) if text is None else httpx.Response(200, stream=httpx.ByteStream(text.encode()))

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def pem_of(key: rsa.RSAPrivateKey) -> str:
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    return key.public_key().public_bytes(encoding, form).decode()


async def test_envelopes_are_refused_until_the_key_has_come(private_key: rsa.RSAPrivateKey) -> None:
    asked: list[str] = []
    keys = PublicKeySource(["http://down", "http://up"], serving({"up": pem_of(private_key)}, asked), VastTiming())
    opener = EnvelopeOpener(keys, is_unsecured=False)
    good = envelope(sign(private_key))
    with pytest.raises(NotReady):
        opener.open(good)
    assert await keys.fetch()
    assert asked == ["http://down/pubkey/", "http://up/pubkey/"]
    assert opener.open(good).payload == PAYLOAD
    with pytest.raises(SignatureRejected):
        opener.open(envelope("AAAA"))


async def test_the_key_is_asked_for_five_times_with_growing_waits() -> None:
    asked: list[str] = []
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    keys = PublicKeySource(["http://up"], serving({"up": "no key"}, asked), VastTiming(), sleep)
    assert not await keys.fetch()
    assert (len(asked), waits) == (5, [1.0, 2.0, 4.0, 8.0])


async def test_an_address_or_a_key_that_cannot_be_used_does_not_end_the_asking(private_key: rsa.RSAPrivateKey) -> None:
    asked: list[str] = []
    keys = PublicKeySource(["http://host:port", "http://up"], serving({"up": pem_of(private_key)}, asked), VastTiming())
    assert await keys.fetch()


def test_without_the_platform_nothing_is_signed() -> None:
    assert EnvelopeOpener(None, is_unsecured=False).open(envelope("", auth_data={})).payload == PAYLOAD


@pytest.mark.parametrize("other", ["HTTPS://203.0.113.5:31000/", "https://203.0.113.5:31000"])
def test_the_same_worker_may_be_written_in_other_ways(other: str) -> None:
    assert is_same_url(other, URL)


@pytest.mark.parametrize("other", ["https://203.0.113.6:31000", "http://203.0.113.5:31000", "https://a:b", None, 3])
def test_another_workers_url_is_not_ours(other: Any) -> None:
    assert not is_same_url(other, URL)


class HeldKey:
    def __init__(self, key: rsa.RSAPublicKey) -> None:
        self.key = key


def test_a_signature_for_another_workers_url_does_not_count_here(private_key: rsa.RSAPrivateKey) -> None:
    keys = HeldKey(private_key.public_key())
    other = "https://203.0.113.99:31000"
    signed_for_other = envelope(sign(private_key, other))
    signed_for_other["auth_data"]["url"] = other
    with pytest.raises(SignatureRejected):
        EnvelopeOpener(keys, is_unsecured=False, own_url=URL).open(signed_for_other)
    assert EnvelopeOpener(keys, is_unsecured=False).open(signed_for_other).payload == PAYLOAD
    assert EnvelopeOpener(keys, is_unsecured=False, own_url=URL).open(envelope(sign(private_key))).payload == PAYLOAD


def test_a_request_that_is_sent_again_keeps_its_id(private_key: rsa.RSAPrivateKey) -> None:
    opener = EnvelopeOpener(HeldKey(private_key.public_key()), is_unsecured=False)
    opened = opener.open(envelope(sign(private_key)))
    again = opener.open(envelope(sign(private_key), auth_data=envelope(sign(private_key))["auth_data"] | {"reqnum": 9}))
    assert opened.repeat_id("body") == again.repeat_id("body") != ""
    assert opened.repeat_id("other body") != opened.repeat_id("body")


def test_without_a_signature_or_within_a_session_two_requests_are_two(private_key: rsa.RSAPrivateKey) -> None:
    unsigned = EnvelopeOpener(None, is_unsecured=True).open(envelope())
    within = EnvelopeOpener(HeldKey(private_key.public_key()), is_unsecured=False).open(
        envelope(sign(private_key), session_id="abc")
    )
    assert unsigned.repeat_id("body") == within.repeat_id("body") == ""
