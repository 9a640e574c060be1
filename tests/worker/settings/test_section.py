"""Sections of settings: each variable sets one field, and values go to the section that declares them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Annotated, ClassVar

import pytest
from pydantic import BaseModel, SecretStr, ValidationError

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.settings.environment import load_settings
from darkroom.worker.settings.jobs import CheckpointSettings
from darkroom.worker.settings.section import CommaList, Section, by_section, env, settings_of, variables_of
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


class Limits(Section):
    whole: ClassVar[str] = "LIMITS"
    steps: Annotated[int, env("MAX_STEPS", key="steps")] = 1
    images: Annotated[int, env("MAX_IMAGES", "OLD_IMAGES", key="images")] = 1
    user: Annotated[str, env("USER_NAME", part_of="STORE_URL")] = ""


class Parts(BaseModel):
    limits: Limits = Limits()


@pytest.mark.parametrize(
    ("values", "limits"),
    [
        ({"LIMITS": "steps=5, images=2,"}, {"MAX_STEPS": "5", "MAX_IMAGES": "2"}),
        ({"limits": "steps=5,images=2", "OLD_IMAGES": "3"}, {"MAX_STEPS": "5", "MAX_IMAGES": "3"}),
        ({"MAX_STEPS": "4"}, {"MAX_STEPS": "4"}),
    ],
)
def test_a_setting_of_parts_sets_several_fields_and_their_own_variables_win(
    values: dict[str, str], limits: dict[str, str]
) -> None:
    assert by_section(Parts, values) == {"limits": limits}
    assert settings_of(Parts) == ("LIMITS", "STORE_URL")


@pytest.mark.parametrize("value", ["pixels=5", "steps", "steps=", "steps=1 images=2,9"])
def test_a_part_that_is_none_is_named_with_those_there_are(value: str) -> None:
    with pytest.raises(SettingsInvalid, match=r"LIMITS: got .* expected steps=VALUE, images=VALUE by commas"):
        by_section(Parts, {"LIMITS": value})


def test_a_value_of_a_part_that_does_not_parse_names_both_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPT_LIMITS", "steps=many")
    with pytest.raises(SettingsInvalid, match="PROMPT_MAX_STEPS or its part of PROMPT_LIMITS: "):
        load_settings(env_file=None)


def test_packs_among_nodes_are_packs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLOWED_NODES", "Load*, pack:built-in")
    monkeypatch.setenv("ALLOWED_NODE_PACKS", "own")
    monkeypatch.setenv("DENIED_NODES", "pack:other")
    policy = load_settings(env_file=None).settings.node_policy
    assert (policy.allowed, policy.allowed_packs) == (("Load*",), ("own", "built-in"))
    assert (policy.denied, policy.denied_packs) == ((), ("other",))


@pytest.mark.parametrize(
    ("values", "level", "user"),
    [
        ({"ENGINE_SANDBOX": "bwrap"}, "bwrap", "10002"),
        ({"ENGINE_SANDBOX": "user:7:8"}, "user", "7:8"),
        ({"ENGINE_SANDBOX": "USER:7", "ENGINE_USER": "painter"}, "user", "painter"),
    ],
)
def test_a_sandbox_names_its_user(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], level: str, user: str
) -> None:
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    sandbox = load_settings(env_file=None).settings.sandbox
    assert (sandbox.level, sandbox.user) == (level, user)


@pytest.mark.parametrize(
    ("value", "folder", "are_copied"),
    [("folder", None, False), ("S3", None, True), ("/mnt/shared", Path("/mnt/shared"), False)],
)
def test_checkpoints_stay_in_a_folder_or_are_copied(value: str, folder: Path | None, are_copied: bool) -> None:
    for name in ("CHECKPOINT_STORE", "CHECKPOINT_DIRECTORY"):
        given = CheckpointSettings.model_validate({name: value})
        assert (given.directory, given.are_copied) == (folder, are_copied)
    with pytest.raises(ValidationError, match="expected folder, s3, or a folder's path"):
        CheckpointSettings.model_validate({"CHECKPOINT_STORE": "s4"})


@pytest.mark.parametrize(
    ("names", "level"),
    [
        ({"DEBUG": "true"}, "debug"),
        ({"DEBUG": "0"}, "info"),
        ({"DEBUG": "true", "LOG_LEVEL": "Warning"}, "warning"),
        ({"LOG_LEVEL": "", "DEBUG": "1"}, "debug"),
    ],
)
def test_debug_is_a_level_of_the_log(monkeypatch: pytest.MonkeyPatch, names: dict[str, str], level: str) -> None:
    for name, value in names.items():
        monkeypatch.setenv(name, value)
    assert load_settings(env_file=None).settings.log.effective_level == level


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
