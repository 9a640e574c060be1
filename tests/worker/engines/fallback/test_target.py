"""FALLBACK_ENGINE: a folder, a command or an address, and the command that comes of it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from darkroom.worker.engines.client.files import LocalFolders
from darkroom.worker.engines.fallback.command import BOOTSTRAP, FallbackLaunch, fallback_command
from darkroom.worker.engines.fallback.sandbox import fallback_sandbox
from darkroom.worker.engines.fallback.target import read_target
from darkroom.worker.engines.sandbox import Sandbox, SandboxPaths
from darkroom.worker.errors import SettingsInvalid
from tests.worker.engines.fallback.stand_in import install


def launch_of(engine: str, folder: Path, **fields: object) -> FallbackLaunch:
    folders = LocalFolders(folder / "input", folder / "output", folder / "temp" / "fallback" / "temp")
    given = {"environment": {"PATH": "/bin"}, "idle_seconds": 300.0, **fields}
    return FallbackLaunch(read_target(engine), folders, folder / "private", **given)  # type: ignore[arg-type]


def test_a_folder_runs_with_its_own_python_and_the_flags_behind_it(tmp_path: Path) -> None:
    folder = install(tmp_path / "Comfy UI")
    target = read_target(f"'{folder}' --lowvram")
    assert target.program == (str(folder / ".venv" / "bin" / "python"),)
    assert (target.script, target.directory, target.flags) == (folder / "main.py", folder, ("--lowvram",))
    assert read_target(str(folder)).flags == ()  # blanks need no quotes where nothing follows


def test_a_folder_without_a_python_says_how_to_name_one(tmp_path: Path) -> None:
    (tmp_path / "main.py").touch()
    with pytest.raises(SettingsInvalid, match=r"no Python of its own.*/path/to/python"):
        read_target(str(tmp_path))
    with pytest.raises(SettingsInvalid, match=r"no main\.py"):
        read_target(str(tmp_path.parent))


def test_a_python_with_a_script_takes_options_before_it_and_flags_behind_it(tmp_path: Path) -> None:
    (tmp_path / "main.py").touch()
    target = read_target(f"{sys.executable} -u {tmp_path}/main.py --lowvram")
    assert target.program == (sys.executable, "-u") and target.flags == ("--lowvram",)
    assert target.script == tmp_path / "main.py"


def test_an_address_is_of_this_machine_or_of_another() -> None:
    here, there = read_target("http://127.0.0.1:8188/"), read_target("https://comfy.example.com")
    assert here.url == "http://127.0.0.1:8188" and here.is_on_this_machine and not here.is_started_here
    assert not there.is_on_this_machine


@pytest.mark.parametrize(
    ("engine", "reason"),
    [
        ("no-such-program --x", "nothing that starts"),
        ("'unclosed", "No closing quotation"),
        ("python3 missing.py", "no file"),
        ("python3 -c pass --port=1", "chooses its address; got --port"),
        ("''", "nothing that starts"),
    ],
)
def test_what_cannot_start_is_refused(engine: str, reason: str) -> None:
    with pytest.raises(SettingsInvalid, match=reason):
        read_target(engine)


def test_the_command_gives_comfyui_the_workers_folders_and_device(tmp_path: Path) -> None:
    folder = install(tmp_path / "ComfyUI")
    made = fallback_command(launch_of(f"{folder} --lowvram", tmp_path, gpu="GPU-1", is_cpu=True, has_metadata=False))
    assert made.program == (str(folder / ".venv/bin/python"), str(BOOTSTRAP), str(folder / "main.py"))
    pairs = dict(zip(made.arguments[0:8:2], made.arguments[1:8:2], strict=True))
    assert pairs == {
        "--extra-model-paths-config": f"{tmp_path}/temp/fallback/model_paths.yaml",
        "--input-directory": f"{tmp_path}/input",
        "--output-directory": f"{tmp_path}/output",
        "--temp-directory": f"{tmp_path}/temp/fallback",
    }
    assert made.arguments[8:] == ("--disable-auto-launch", "--disable-metadata", "--cpu", "--lowvram")
    assert made.environment == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "GPU-1"} and made.directory == folder


def test_flags_or_a_sandbox_without_a_network_keep_partners_out(tmp_path: Path) -> None:
    folder = install(tmp_path / "ComfyUI")
    assert launch_of(str(folder), tmp_path).may_send
    assert not launch_of(f"{folder} --disable-api-nodes", tmp_path).may_send
    sandbox = Sandbox("bwrap", None, SandboxPaths(tmp_path, tmp_path, tmp_path, (), ()))
    assert not launch_of(str(folder), tmp_path, sandbox=sandbox).may_send
    assert launch_of(str(folder), tmp_path, sandbox=replace(sandbox, level="user")).may_send


def test_a_sandboxed_one_reads_its_own_folders_and_has_a_socket_in_place_of_a_port(tmp_path: Path) -> None:
    folder, output, temp = install(tmp_path / "ComfyUI"), tmp_path / "output", tmp_path / "temp" / "fallback"
    own = Sandbox("bwrap", None, SandboxPaths(tmp_path, tmp_path, tmp_path / "input", (tmp_path / "models",), (temp,)))
    launch = launch_of(f"{folder} --base-directory {tmp_path}/packs", tmp_path)
    sandbox = fallback_sandbox(own, launch.target, output, temp)
    read = sandbox.places.readable
    assert {tmp_path / "models", folder, folder / ".venv", tmp_path / "packs"} <= {*read}
    assert Path(sys.executable).resolve().parent.parent in read or sys.prefix.startswith("/usr")
    assert sandbox.places.writable == (output, temp, temp / "user")
    made = fallback_command(replace(launch, sandbox=sandbox, limits=("--limit-processes", "9")))
    assert made.listen == "" and made.sandbox == sandbox and made.socket_directory == launch.private_directory
    assert made.arguments[:4] == ("--limit-processes", "9", "--user-directory", f"{temp}/user")
    with pytest.raises(SettingsInvalid, match="cannot be sandboxed"):
        fallback_sandbox(own, read_target("sh -c true"), output, temp)
