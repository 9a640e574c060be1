"""Keys as they are written, and the file of them that changes."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.guard.identity.key_ring import KeyRing
from darkroom.worker.settings.api_keys import (
    ALL_SCOPES,
    CUSTOMER_SCOPES,
    KeyFile,
    KeyMalformed,
    Scope,
    find_key,
    new_key,
    parse_key,
    parse_keys,
    read_scopes,
)

DIGEST = sha256(b"hush-hush").hexdigest()


@pytest.mark.parametrize(
    ("text", "name", "scopes"),
    [
        ("hush-hush", f"key-{DIGEST[:8]}", CUSTOMER_SCOPES),
        ("shop:hush-hush", "shop", CUSTOMER_SCOPES),
        ("shop:hush-hush:read", "shop", {Scope.READ}),
        ("shop:hush-hush:Submit + READ", "shop", CUSTOMER_SCOPES),
        ("ops:hush-hush:admin", "ops", ALL_SCOPES),
        (f"shop:sha256:{DIGEST}", "shop", CUSTOMER_SCOPES),
        (f" shop:SHA256:{DIGEST.upper()}:submit ", "shop", {Scope.SUBMIT}),
    ],
)
def test_a_key_has_a_name_a_digest_and_scopes(text: str, name: str, scopes: frozenset[Scope]) -> None:
    key = parse_key(text)
    assert (key.name, key.digest.hex(), key.scopes) == (name, DIGEST, scopes)
    assert "hush" not in repr(key) and DIGEST not in repr(key)


@pytest.mark.parametrize(
    "text",
    ["", ":", "shop:", ":hush-hush", "a b:hush-hush", "shop:hush-hush:", "shop:hush-hush:write", "a:hush-hush:read:x"]
    + ["shop:sha256:hush-hush", f"shop:sha256:{DIGEST}:read:x", "shop:hush-hush:read+", "é:hush-hush"],
)
def test_a_malformed_key_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(KeyMalformed) as caught:
        parse_keys(["fine", text])
    assert "entry 2" in str(caught.value) and "hush" not in str(caught.value)


def test_one_secret_has_one_name_and_one_name_may_have_several_secrets() -> None:
    with pytest.raises(KeyMalformed, match="shop and other"):
        parse_keys(["shop:hush-hush", f"other:sha256:{DIGEST}"])
    old_and_new = parse_keys(["shop:old-secret", "shop:new-secret"])
    assert [find_key(old_and_new, secret) for secret in ("old-secret", "new-secret", "shop", DIGEST)] == [
        *old_and_new,
        None,
        None,
    ]


def test_a_new_key_fits_its_line() -> None:
    secret, line = new_key("shop", read_scopes("submit"))
    key = parse_key(line)
    assert find_key([key], secret) == key and key.scopes == {Scope.SUBMIT}
    assert secret not in line and len(secret) > 40
    with pytest.raises(KeyMalformed):
        new_key("a shop", CUSTOMER_SCOPES)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 2.0
        return self.now


def ring_of(path: Path, scopes: frozenset[Scope] = CUSTOMER_SCOPES) -> KeyRing:
    return KeyRing(parse_keys(["fixed:fixed-secret"]), [KeyFile("API_KEYS_FILE", path, scopes)], Clock())


def write(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# all keys\n\nshop:first-secret:read\n")
    ring = ring_of(file, ALL_SCOPES)
    found = ring.find("first-secret")
    assert found is not None and found.scopes == {Scope.READ} and ring.find("fixed-secret") is not None
    write(file, f"ops:sha256:{DIGEST}\n")
    found = ring.find("hush-hush")
    assert found is not None and found.scopes == ALL_SCOPES
    assert ring.find("first-secret") is None and ring.find("fixed-secret") is not None


@pytest.mark.parametrize("broken", ["shop:sha256:zz\n", "other:fixed-secret\n", "\udcff", None])
def test_a_file_that_becomes_unusable_leaves_the_last_keys_in_force(tmp_path: Path, broken: str | None) -> None:
    file = tmp_path / "keys"
    file.write_text("shop:first-secret\n")
    ring = ring_of(file)
    if broken is None:
        file.unlink()
    else:
        file.write_bytes(broken.encode(errors="surrogateescape"))
    assert ring.find("first-secret") is not None
    write(file, "shop:second-secret\n")
    assert ring.find("first-secret") is None and ring.find("second-secret") is not None


@pytest.mark.parametrize(
    ("text", "words"),
    [("a:first-secret\nb:sha256:zz\n", "line 2"), ("a:fixed-secret\n", "one secret twice"), (None, "cannot be read")],
)
def test_a_file_that_is_unusable_from_the_start_is_named(tmp_path: Path, text: str | None, words: str) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
    with pytest.raises(SettingsInvalid, match=f"API_KEYS_FILE.*{words}") as caught:
        ring_of(file)
    assert "secret\n" not in str(caught.value) and "fixed-secret" not in str(caught.value)
