"""Sections of settings: each variable sets one field, and values go to the section that declares them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.settings.environment import load_settings
from darkroom.worker.settings.section import CommaList, Section, by_section, env, variables_of
from darkroom.worker.settings.settings import Settings


class Store(Section):
    url: Annotated[str, env("STORE_URL", "OLD_URL")] = ""
    keys: Annotated[CommaList[SecretStr], env("STORE_KEYS")] = ()
    derived: int = 0


class Two(BaseModel):
    store: Store = Store()
    other: int = 0


def test_fields_without_a_variable_are_not_read() -> None:
    assert [(item.section, item.attribute, item.names) for item in variables_of(Two)] == [
        ("store", "url", ("STORE_URL", "OLD_URL")),
        ("store", "keys", ("STORE_KEYS",)),
    ]
    assert [item.name for item in variables_of(Two) if item.is_secret] == ["STORE_KEYS"]


@pytest.mark.parametrize(
    ("values", "sections"),
    [
        ({}, {}),
        ({"old_url": "a"}, {"store": {"STORE_URL": "a"}}),
        ({"OLD_URL": "a", "Store_Url": "b"}, {"store": {"STORE_URL": "b"}}),
        ({"STORE_KEYS": "k", "PATH": "/bin"}, {"store": {"STORE_KEYS": "k"}}),
    ],
)
def test_values_go_to_their_section_under_the_preferred_name(
    values: dict[str, str], sections: dict[str, dict[str, str]]
) -> None:
    assert by_section(Two, values) == sections


def test_a_section_is_built_by_its_attributes_and_cannot_be_changed() -> None:
    store = Store(url="a", derived=2)
    assert Two.model_validate(by_section(Two, {"STORE_URL": "a"})).store.url == store.url
    with pytest.raises(ValidationError, match="frozen"):
        store.derived = 3
    with pytest.raises(ValidationError, match="Extra inputs"):
        Store.model_validate({"STORE_PATH": "a"})


def test_a_secret_shows_neither_in_a_section_nor_in_an_error() -> None:
    assert "planted" not in repr(Store.model_validate({"STORE_KEYS": "planted-a, planted-b"}))
    with pytest.raises(ValidationError) as caught:
        Store.model_validate({"STORE_KEYS": "planted-a", "STORE_URL": ["planted-b"]})
    assert "planted" not in str(caught.value)


def test_no_variable_sets_two_fields() -> None:
    names = Counter(name for variable in variables_of(Settings) for name in variable.names)
    assert not [name for name, count in names.items() if count > 1]


def test_another_name_in_the_environment_wins_over_the_preferred_one_in_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".env").write_text("BASE_DIRECTORY=/from-file\nRESULT_TTL=7\n")
    monkeypatch.delenv("BASE_DIRECTORY", raising=False)
    monkeypatch.setenv("COMFYUI_INSTALL_PATH", "/from-environment")
    settings = load_settings(tmp_path / ".env").settings
    assert (settings.folders.base, settings.retention.result_ttl_seconds) == (Path("/from-environment"), 7)
    assert load_settings(tmp_path / ".env", base_directory="/given").settings.folders.base == Path("/given")


def test_problems_of_all_sections_are_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_PORT", "eighty")
    monkeypatch.setenv("API_KEYS", "shop:planted-secret:write")
    monkeypatch.setenv("ENGINE_ENVIRONMENT", "1x")
    with pytest.raises(SettingsInvalid, match="WORKER_PORT.*ENGINE_ENVIRONMENT.*API_KEYS") as caught:
        load_settings(env_file=None)
    assert "planted" not in str(caught.value)


def test_an_override_that_is_no_setting_is_refused() -> None:
    with pytest.raises(TypeError, match="WORKER_PRT"):
        load_settings(env_file=None, worker_prt=1)
