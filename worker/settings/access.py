"""Settings of access control: API keys, trust in this machine, and open routes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import SecretStr, model_validator

from darkroom.worker.settings.api_keys import (
    ALL_SCOPES,
    CUSTOMER_SCOPES,
    ApiKey,
    KeyFile,
    KeyMalformed,
    check_distinct,
    parse_keys,
)
from darkroom.worker.settings.section import CommaList, Section, env


class AccessSettings(Section):
    """Credentials that callers need."""

    is_unsecured: Annotated[bool, env("UNSECURED")] = False
    """Accept requests without signature or key, as an operator's."""

    trust_loopback: Annotated[bool | None, env("TRUST_LOOPBACK")] = None
    """Requests from this machine itself, with no proxy's header, need no key and are an operator's. Empty: on until
    keys are set."""

    api_keys: Annotated[CommaList[SecretStr], env("API_KEYS")] = ()
    """Comma list of keys (`Authorization: Bearer`): `NAME:SECRET:SCOPES` with scopes `submit+read` or `admin`,
    `NAME:SECRET` or a bare secret ([security](security.md#who-may-do-what))."""

    api_keys_file: Annotated[Path | None, env("API_KEYS_FILE")] = None
    """A file of them instead, a key a line, hashed or not; read again when it changes."""

    admin_api_keys: Annotated[CommaList[SecretStr], env("ADMIN_API_KEYS")] = ()
    """Comma list of operators' keys, `NAME:SECRET` or bare secrets."""

    admin_api_keys_file: Annotated[Path | None, env("ADMIN_API_KEYS_FILE")] = None
    """A file of them instead."""

    metrics_are_open: Annotated[bool, env("METRICS_OPEN")] = True
    """false: `/metrics` needs an operator's key."""

    @model_validator(mode="after")
    def _keys_are_well_formed(self) -> AccessSettings:
        for name, given, file in (
            ("API_KEYS", self.api_keys, self.api_keys_file),
            ("ADMIN_API_KEYS", self.admin_api_keys, self.admin_api_keys_file),
        ):
            if given and file is not None:
                raise ValueError(f"{name}: set beside {name}_FILE; got both, expected one of them")
            try:
                parse_keys(key.get_secret_value() for key in given)
            except KeyMalformed as error:
                raise ValueError(f"{name}: {error}") from None
        try:
            check_distinct(self.keys)
        except KeyMalformed as error:
            raise ValueError(f"API_KEYS and ADMIN_API_KEYS: {error}") from None
        return self

    @property
    def keys(self) -> tuple[ApiKey, ...]:
        """Keys that are not in a file."""
        customers = parse_keys(key.get_secret_value() for key in self.api_keys)
        return customers + parse_keys((key.get_secret_value() for key in self.admin_api_keys), ALL_SCOPES)

    @property
    def key_files(self) -> tuple[KeyFile, ...]:
        files = (
            ("API_KEYS_FILE", self.api_keys_file, CUSTOMER_SCOPES),
            ("ADMIN_API_KEYS_FILE", self.admin_api_keys_file, ALL_SCOPES),
        )
        return tuple(KeyFile(name, path, scopes) for name, path, scopes in files if path is not None)

    @property
    def has_api_keys(self) -> bool:
        return bool(self.api_keys or self.admin_api_keys or self.key_files)

    @property
    def trusts_loopback(self) -> bool:
        """True if this machine needs no key. With keys set it needs one: a proxy may pass requests on unmarked."""
        return not self.has_api_keys if self.trust_loopback is None else self.trust_loopback


@dataclass(frozen=True, slots=True)
class AuthConfig:
    """Authentication of callers.

    With `master_token` set, a request without Vast's envelope needs an API key, loopback, or `is_unsecured`.
    `public_host` is the lower-case host name of the worker, empty where it is not set.
    """

    master_token: SecretStr
    keys: tuple[ApiKey, ...] = ()
    key_files: tuple[KeyFile, ...] = ()
    is_unsecured: bool = False
    trusts_loopback: bool = True
    public_host: str = ""
