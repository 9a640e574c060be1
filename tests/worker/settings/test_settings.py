"""The environment and `.env` become settings, or a start that stops and names the variable."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.guard.identity.may_listen import check_may_listen
from darkroom.worker.settings.environment import child_environment, hub_access, load_settings, runpod_environment
from darkroom.worker.settings.settings import Settings
from darkroom.worker.settings.start_checks import find_open_doors
from darkroom.worker.settings.variable_names import known_names


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in known_names():
        monkeypatch.delenv(name, raising=False)


def test_the_defaults_are_the_documented_ones() -> None:
    settings = load_settings(env_file=None).settings
    assert (settings.listener.host, settings.listener.port, settings.queue.max_queued) == ("127.0.0.1", 8000, 100)
    assert (settings.queue.job_timeout_seconds, settings.queue.sync_grace_seconds, settings.outputs.metadata) == (
        3600,
        30,
        "none",
    )
    assert settings.queue_limits().max_wait_seconds is None


def test_a_value_that_does_not_parse_names_every_such_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_PORT", "eighty")
    monkeypatch.setenv("METADATA", "some")
    monkeypatch.setenv("ENGINE_URL", "localhost:8188")
    with pytest.raises(SettingsInvalid, match="(?s)WORKER_PORT.*ENGINE_URL.*METADATA"):
        load_settings(env_file=None)


@pytest.mark.parametrize(
    ("changes", "url"),
    [
        ({}, "http://127.0.0.1:8000"),
        ({"worker_host": "0.0.0.0", "use_ssl": True}, "https://127.0.0.1:8000"),
        ({"worker_host": "::", "worker_port": 80}, "http://[::1]:80"),
        ({"worker_host": "192.0.2.1"}, "http://192.0.2.1:8000"),
    ],
)
def test_the_worker_is_found_from_its_own_machine(changes: dict[str, Any], url: str) -> None:
    assert load_settings(env_file=None, **changes).settings.local_url == url


@pytest.mark.parametrize("name", ["S3_ENDPOINT_URL", "WEBHOOK_URL", "PUBLIC_URL"])
def test_an_address_that_is_none_stops_the_start(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for wrong in ("store.example.com:9000", "ftp://store", "https://"):
        monkeypatch.setenv(name, wrong)
        with pytest.raises(SettingsInvalid, match=f"{name}.*is not an http"):
            load_settings(env_file=None)
    monkeypatch.setenv(name, "HTTPS://store.example.com/below")
    load_settings(env_file=None)


def test_a_bad_value_is_not_repeated_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAX_QUEUE_SIZE", "planted-secret")
    with pytest.raises(SettingsInvalid) as caught:
        load_settings(env_file=None)
    assert "planted-secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["ENGINE_URL", "COMFYUI_BACKENDS", "COMFYUI_API_BASE"])
def test_the_engine_has_three_names_and_may_be_a_list(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "http://a:1/, http://b:2")
    assert load_settings(env_file=None).settings.engine.urls == ("http://a:1", "http://b:2")


def test_comfyui_install_path_is_the_base_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMFYUI_INSTALL_PATH", "/somewhere")
    assert load_settings(env_file=None).settings.folders.state_path == Path("/somewhere/state")


def test_near_misses_and_names_without_effect_are_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_PRT", "1")
    monkeypatch.setenv("REDIS_HOST", "x")
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/ssl/cert.pem")  # every TLS library's
    warnings = load_settings(env_file=None).warnings
    assert any("WORKER_PRT" in line and "WORKER_PORT" in line for line in warnings)
    assert any("REDIS_HOST" in line for line in warnings)
    assert not any("SSL_CERT_FILE" in line for line in warnings)


def test_the_environment_wins_over_the_file_and_empty_means_unset(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / ".env"
    file.write_text("WORKER_PORT=1\nMAX_QUEUE_SIZE=7\n")
    monkeypatch.setenv("WORKER_PORT", "2")
    monkeypatch.setenv("S3_BUCKET_NAME", "")
    settings = load_settings(env_file=file).settings
    assert (settings.listener.port, settings.queue.max_queued, settings.s3.bucket_name) == (2, 7, "")


def test_under_vast_the_wait_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_TOKEN", "t")
    monkeypatch.setenv("CONTAINER_ID", "5")
    monkeypatch.setenv("WORKER_PORT", "81")
    monkeypatch.setenv("VAST_TCP_PORT_81", "40081")
    settings = load_settings(env_file=None).settings
    assert settings.queue_limits().max_wait_seconds == 10
    assert settings.vast_config().public_port == 40081


def test_secrets_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S3_SECRET_ACCESS_KEY", "planted-secret")
    monkeypatch.setenv("API_KEYS", "planted-secret")
    settings = load_settings(env_file=None).settings
    assert "planted-secret" not in f"{settings!r}{settings.s3!r}{settings.auth_config()!r}"


def test_a_child_gets_no_setting_of_the_front(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_TOKEN", "planted")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    environment = child_environment()
    assert "MASTER_TOKEN" not in environment and environment["CUDA_VISIBLE_DEVICES"] == "0"
    assert "MASTER_TOKEN" not in child_environment(["MASTER*", "M*"])


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings().listener.port = 1


@pytest.mark.parametrize(
    ("environment", "platform"),
    [
        ({}, "plain"),
        ({"MASTER_TOKEN": "t", "CONTAINER_ID": "7", "REPORT_ADDR": "https://run.vast.ai/"}, "vast"),
        ({"MASTER_TOKEN": "t"}, "plain"),
        ({"RUNPOD_WEBHOOK_GET_JOB": "https://a/job-take/$ID"}, "runpod"),
        ({"MASTER_TOKEN": "t", "CONTAINER_ID": "7", "AUTOSCALER": "plain"}, "plain"),
    ],
)
def test_the_platform_is_seen_from_what_it_sets(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], platform: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    settings = load_settings(env_file=None).settings
    assert settings.platform == platform
    assert settings.listen_host == ("0.0.0.0" if platform == "vast" else "127.0.0.1")
    assert settings.queue_limits().max_wait_seconds == (10.0 if platform == "vast" else None)


@pytest.mark.parametrize(("name", "missing"), [("vast", "CONTAINER_ID"), ("runpod", "RUNPOD_WEBHOOK_GET_JOB")])
def test_a_platform_that_is_asked_for_and_not_there_stops_the_start(
    monkeypatch: pytest.MonkeyPatch, name: str, missing: str
) -> None:
    monkeypatch.setenv("AUTOSCALER", name)
    with pytest.raises(SettingsInvalid, match=missing):
        load_settings(env_file=None)


def test_what_runpod_sets_goes_to_its_loop_and_to_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RUNPOD_AI_API_KEY", "RUNPOD_WEBHOOK_GET_JOB", "S3_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "planted-secret")
    monkeypatch.setenv("RUNPOD_LOG_LEVEL", "DEBUG")
    assert "planted-secret" not in child_environment().values()
    of_loop = runpod_environment()
    assert of_loop["RUNPOD_AI_API_KEY"] == of_loop["RUNPOD_WEBHOOK_GET_JOB"] == "planted-secret"
    assert "S3_SECRET_ACCESS_KEY" not in of_loop and of_loop["RUNPOD_LOG_LEVEL"] == "INFO"


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"WORKER_HOST": "0.0.0.0", "RUNPOD_WEBHOOK_GET_JOB": "https://a"}, "this machine alone"),
        ({"CONTAINER_ID": "7"}, "signatures"),
        ({"WORKER_HOST": "::1"}, None),
        ({"WORKER_HOST": "0.0.0.0", "API_KEYS": "k"}, None),
        ({"WORKER_HOST": "0.0.0.0", "UNSECURED": "true"}, None),
        ({"CONTAINER_ID": "7", "MASTER_TOKEN": "t"}, None),
    ],
)
def test_an_open_door_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], words: str | None
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    warnings = find_open_doors(load_settings(env_file=None).settings)
    assert (words in "".join(warnings)) if words else not warnings


@pytest.mark.parametrize(
    "environment",
    [
        {"WORKER_HOST": "0.0.0.0"},
        {"WORKER_HOST": "::"},
        {"WORKER_HOST": "192.0.2.7"},
        {"WORKER_HOST": "gpu-box"},
        {"WORKER_HOST": "0.0.0.0", "CONTAINER_ID": "7"},
    ],
)
def test_a_worker_that_is_open_to_everyone_does_not_start(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str]
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SettingsInvalid, match=f"WORKER_HOST.*{environment['WORKER_HOST']}.*API_KEYS.*UNSECURED=true"):
        check_may_listen(load_settings(env_file=None).settings)
    for name, value in (("API_KEYS", "k"), ("ADMIN_API_KEYS", "k"), ("MASTER_TOKEN", "t"), ("UNSECURED", "true")):
        with monkeypatch.context() as patch:
            patch.setenv(name, value)
            check_may_listen(load_settings(env_file=None).settings)
    monkeypatch.setenv("WORKER_HOST", "127.0.0.1")
    check_may_listen(load_settings(env_file=None).settings)


def test_runpods_port_is_this_machines_until_there_is_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_HOST", "0.0.0.0")
    monkeypatch.setenv("RUNPOD_WEBHOOK_GET_JOB", "https://a")
    settings = load_settings(env_file=None).settings
    check_may_listen(settings)
    assert settings.listen_host == "127.0.0.1"
    monkeypatch.setenv("API_KEYS", "k")
    assert load_settings(env_file=None).settings.listen_host == "0.0.0.0"


@pytest.mark.parametrize(
    ("environment", "trusts"),
    [
        ({}, True),
        ({"MASTER_TOKEN": "t"}, True),
        ({"API_KEYS": "k"}, False),
        ({"ADMIN_API_KEYS": "k"}, False),
        ({"API_KEYS_FILE": "/keys"}, False),
        ({"API_KEYS": "k", "TRUST_LOOPBACK": "true"}, True),
        ({"TRUST_LOOPBACK": "false"}, False),
    ],
)
def test_with_keys_this_machine_needs_one_too_unless_it_is_said(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], trusts: bool
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert load_settings(env_file=None).settings.auth_config().trusts_loopback is trusts


SECRETS = ["S3_ACCESS_KEY_ID", "S3_SECRET_ACCESS_KEY", "WEBHOOK_SECRET", "MASTER_TOKEN", "RUNPOD_WEBHOOK_GET_JOB"]


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_may_lie_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    file = tmp_path / "secret"
    file.write_text("planted-secret\n")
    monkeypatch.setenv(f"{name}_FILE", str(file))
    loaded = load_settings(env_file=None)
    assert loaded.settings.secret_values() == ["planted-secret"]
    assert not [line for line in loaded.warnings if f"{name}_FILE" in line]
    assert f"{name}_FILE" not in child_environment()
    monkeypatch.setenv(name, "planted-other")
    with pytest.raises(SettingsInvalid, match=f"{name}: set beside {name}_FILE") as caught:
        load_settings(env_file=None)
    assert "planted" not in str(caught.value)
    monkeypatch.delenv(name)
    for content, words in ((" \n", "is empty"), (None, "cannot be read")):
        file.write_text(content) if content is not None else file.unlink()
        with pytest.raises(SettingsInvalid, match=f"{name}_FILE.*{words}"):
            load_settings(env_file=None)


def test_the_hubs_token_may_lie_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "HF_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "token").write_text("planted-token\n")
    monkeypatch.setenv("HF_TOKEN_FILE", str(tmp_path / "token"))
    assert hub_access().token.get_secret_value() == "planted-token"
    monkeypatch.setenv("HF_TOKEN", "planted-other")
    with pytest.raises(SettingsInvalid, match="HF_TOKEN: set beside HF_TOKEN_FILE"):
        hub_access()


def test_a_secrets_file_is_named_in_the_env_file_too(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("planted-secret")
    (tmp_path / ".env").write_text(f"WEBHOOK_SECRET_FILE={tmp_path / 'secret'}\n")
    assert load_settings(tmp_path / ".env").settings.webhook.secret.get_secret_value() == "planted-secret"


@pytest.mark.parametrize("name", ["API_KEYS", "ADMIN_API_KEYS"])
def test_malformed_keys_and_keys_given_twice_stop_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv(name, "fine,shop:planted-secret:write")
    with pytest.raises(SettingsInvalid, match=f"{name}: entry 2: key shop: unknown scope") as caught:
        load_settings(env_file=None)
    assert "planted" not in str(caught.value)
    monkeypatch.setenv(name, "k")
    monkeypatch.setenv(f"{name}_FILE", str(tmp_path / "keys"))
    with pytest.raises(SettingsInvalid, match=f"{name}: set beside {name}_FILE"):
        load_settings(env_file=None)
    monkeypatch.delenv(name)
    with pytest.raises(SettingsInvalid, match=f"{name}_FILE.*cannot be read"):
        check_may_listen(load_settings(env_file=None).settings)


def test_one_secret_is_not_a_customers_and_an_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEYS", "shop:planted-secret")
    monkeypatch.setenv("ADMIN_API_KEYS", "planted-secret")
    with pytest.raises(SettingsInvalid, match="one secret twice") as caught:
        load_settings(env_file=None)
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    "name", ["API_KEY", "S3_ACCESS_KEY", "WEBHOOK_SECRETS", "MASTER_TOKEN_PATH", "WORKER_LISTEN", "S3_BUCKET_FILE"]
)
def test_an_unknown_name_that_looks_like_ours_is_warned_about(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "planted-secret")
    warnings = [line for line in load_settings(env_file=None).warnings if line.startswith(f"{name} is not a setting")]
    assert len(warnings) == 1 and "planted" not in warnings[0]


def test_what_kubernetes_says_of_its_services_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ENGINE_SERVICE_HOST", "WORKER_PORT_8000_TCP_ADDR", "ENGINE_SERVICE_PORT_HTTP", "WORKER_SERVICE_PORT"):
        monkeypatch.setenv(name, "10.0.0.1")
    assert not load_settings(env_file=None).warnings


def test_half_a_store_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not load_settings(env_file=None).warnings
    monkeypatch.setenv("S3_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("S3_SECRET_ACCESS_KEY", "secret")
    assert any(line.startswith("S3_BUCKET_NAME not set") for line in load_settings(env_file=None).warnings)
    monkeypatch.setenv("S3_BUCKET_NAME", "pictures")
    assert not load_settings(env_file=None).warnings


def test_limits_that_follow_from_another_one() -> None:
    plain = load_settings(env_file=None).settings
    assert plain.json_limits().max_string_bytes == plain.bodies.max_bytes == 100 * 1024**2
    assert plain.retention.input_max_bytes == 5 * 1024**3
    changed = load_settings(env_file=None, max_request_bytes=1000, output_max_bytes=400).settings
    assert changed.json_limits().max_string_bytes == 1000 and changed.retention.input_max_bytes == 100
