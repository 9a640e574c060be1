"""The environment of the engine: what it needs is listed, so that a secret nobody thought of stays out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.settings.environment import child_environment, load_settings, runpod_environment

SECRETS = (
    *("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "GITHUB_TOKEN", "OPENAI_API_KEY", "KUBECONFIG"),
    *(
        "NVIDIA_API_KEY",
        "TORCH_HUB_TOKEN",
        "PYTHON_KEYRING_PASSWORD",
        "CUDA_SECRET",
        "S3_SECRET_ACCESS_KEY",
        "API_KEYS",
    ),
    *("DATABASE_URL", "SSH_AUTH_SOCK", "WEBHOOK_SECRET_FILE", "MASTER_TOKEN", "RUNPOD_AI_API_KEY", "PIP_INDEX_URL"),
)
NEEDED = {
    "CUDA_VISIBLE_DEVICES": "0",
    "NVIDIA_VISIBLE_DEVICES": "all",
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "PYTHONUNBUFFERED": "1",
    "OMP_NUM_THREADS": "1",
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "HF_HOME": "/cache",
    "no_proxy": "127.0.0.1",
    "HTTPS_PROXY": "http://proxy.example:3128",
}


def test_a_child_gets_what_it_needs_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, "planted-secret")
    for name, value in NEEDED.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("ALL_PROXY", "http://user:planted-secret@proxy.example:3128")
    environment = child_environment()
    assert not [name for name, value in environment.items() if "planted-secret" in value]
    assert {name: environment.get(name) for name in NEEDED} == NEEDED
    assert "PATH" in environment and "HOME" in environment


def test_the_operator_may_name_more_but_no_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "MYPACK_A", "MYPACK_B", "OTHER"):
        monkeypatch.setenv(name, "given")
    monkeypatch.setenv("ENGINE_ENVIRONMENT", "HF_TOKEN, MYPACK_*")
    launch = load_settings(env_file=None).settings.engine_launch()
    environment = child_environment(launch.environment_names)
    assert environment == child_environment()
    assert {"HF_TOKEN", "MYPACK_A", "MYPACK_B"} <= environment.keys() and "OTHER" not in environment


@pytest.mark.parametrize("names", ["API_KEYS", "s3_secret_access_key", "MASTER_TOKEN_FILE", "A=B", "*", "A B"])
def test_a_name_that_no_engine_may_have_stops_the_start(monkeypatch: pytest.MonkeyPatch, names: str) -> None:
    monkeypatch.setenv("ENGINE_ENVIRONMENT", names)
    with pytest.raises(SettingsInvalid, match="ENGINE_ENVIRONMENT"):
        load_settings(env_file=None)


def test_runpods_loop_gets_its_own_variables_and_no_others_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*SECRETS, "RUNPOD_WEBHOOK_GET_JOB"):
        monkeypatch.setenv(name, f"planted-{name}")
    planted = {name for name, value in runpod_environment().items() if value.startswith("planted-")}
    assert planted == {"RUNPOD_AI_API_KEY", "RUNPOD_WEBHOOK_GET_JOB"}


def test_the_nodes_command_holds_no_planted_secret(tmp_path: Path) -> None:
    """Those of an engine's process are looked for in `tests/flow/test_secrets.py`."""
    pack = tmp_path / "tells"
    pack.mkdir()
    (pack / "__init__.py").write_text(
        f"import os\nNODE_CLASS_MAPPINGS = {{}}\nopen({str(tmp_path / 'told')!r}, 'w').write(repr(dict(os.environ)))\n"
    )
    environment = {"PATH": "/usr/bin:/bin", "HF_TOKEN": "planted", "API_KEYS": "planted"}
    command = [sys.executable, "-m", "darkroom.worker", "nodes", "check", str(pack)]
    subprocess.run(command, env=environment, cwd=Path(__file__).parents[2], check=False, timeout=120)
    assert "planted" not in (tmp_path / "told").read_text()
