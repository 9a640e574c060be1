"""`run_install` of packs.toml: install.py runs once, apart from the engine's packages; a failure changes nothing."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from darkroom.engine.comfy.packs.layer import layer_folders
from darkroom.engine.comfy.packs.sync.errors import InstallScriptFailed, PackChanged
from darkroom.engine.comfy.packs.sync.lock import PacksLock, lock_path, read_lock
from darkroom.engine.comfy.packs.sync.sync import SyncOptions, collect_packs, sync_packs
from darkroom.engine.comfy.packs.sync.versions import pack_versions
from tests.engine.comfy.packs.sync.sources import NODE, write_manifest, write_repository
from tests.engine.comfy.packs.test_requirements import write_wheel

SCRIPT = """
import pathlib, subprocess, sys
import dr_asked, torch
with open({runs!r}, "a") as runs:
    runs.write("run\\n")
pip = [sys.executable, "-m", "pip"]
subprocess.run([*pip, "install", "dr_more"], check=True)
subprocess.run(["pip", "uninstall", "-y", "torch"])
subprocess.run([*pip, "install", "dr_asked==9.0"])
pathlib.Path("settings.ini").write_text("written by install.py")
print("done", torch.__version__)
"""


def synced(base: Path, options: SyncOptions, lines: list[str] | None = None) -> PacksLock:
    return sync_packs(base, options, (lines if lines is not None else []).append)


def state_of(base: Path) -> str:
    return pack_versions(base, reads_files=True)[0].state


@pytest.mark.slow
def test_a_script_runs_once_by_the_manifest_and_its_results_go_with_a_snapshot(tmp_path: Path) -> None:
    base, wheels, runs = tmp_path / "base", tmp_path / "wheels", tmp_path / "runs"
    torch = metadata.version("torch")
    for name, version in (("dr_asked", "2.0"), ("dr_asked", "9.0"), ("dr_more", "1.0"), ("torch", "0.0.1")):
        write_wheel(wheels, name, version)
    files = {"__init__.py": NODE, "install.py": SCRIPT.format(runs=str(runs)), "requirements.txt": "dr_asked<9\n"}
    write_repository(tmp_path / "one", files)
    manifest = f'[One]\nurl = "{tmp_path / "one"}"\n'
    write_manifest(base, manifest)
    lines: list[str] = []
    plain = synced(base, SyncOptions(wheels=wheels), lines)
    assert not runs.exists()
    assert any(line.startswith("not run    One/install.py: `run_install = true`") for line in lines)
    assert state_of(base) == "good"

    write_manifest(base, manifest + "run_install = true\n")
    assert state_of(base) == "not installed"
    assert synced(base, SyncOptions(wheels=wheels, is_dry=True)) == plain
    assert not runs.exists(), "a dry run runs nothing"
    lock = synced(base, SyncOptions(wheels=wheels))
    assert [(item.name, item.version, item.installed_by) for item in lock.packages] == [
        ("dr-asked", "2.0", ""),
        ("dr-more", "1.0", "One"),
    ]
    log = (base / "pack_install_logs" / "One.log").read_text()
    assert f"done {torch}" in log
    assert "Not uninstalling torch" in log
    assert "dr_asked==9.0" in log, "pip names the conflict"
    assert metadata.version("torch") == torch
    layer = [str(path) for path in layer_folders(base)]
    code = f"import sys; sys.path += {layer!r}; import dr_more, dr_asked; print(dr_asked.VERSION)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout == "2.0\n", done.stderr
    assert state_of(base) == "good", "what the script wrote belongs to the pack"
    assert synced(base, SyncOptions(wheels=wheels, is_locked=True)) == lock == read_lock(lock_path(base))
    assert runs.read_text() == "run\n"

    snapshot, fresh = tmp_path / "snapshot", tmp_path / "fresh"
    collect_from(base, snapshot, wheels)
    write_manifest(fresh, (snapshot / "packs.toml").read_text())
    lock_path(fresh).write_text(lock_path(snapshot).read_text())
    synced(fresh, SyncOptions(is_locked=True, offline=snapshot))
    assert runs.read_text() == "run\n", "a snapshot has what the script made"
    assert (fresh / "custom_nodes" / "One" / "settings.ini").read_text() == "written by install.py"
    assert state_of(fresh) == "good"
    (snapshot / "packs" / "One" / "settings.ini").write_text("changed")
    with pytest.raises(PackChanged, match="One: its tree has SHA-256"):
        synced(tmp_copy(fresh, tmp_path / "other"), SyncOptions(is_locked=True, offline=snapshot))
    (base / "custom_nodes" / "One" / "settings.ini").write_text("changed")
    assert state_of(base) == "changed"


def test_a_script_runs_in_the_place_of_its_pack_when_the_manifest_says_so(tmp_path: Path) -> None:
    base = tmp_path / "base"
    script = "import os, pathlib; pathlib.Path('made').write_text(os.getcwd() + os.environ['COMFYUI_PATH'])"
    write_repository(tmp_path / "one", {"__init__.py": NODE, "install.py": script})
    write_manifest(base, f'[One]\nurl = "{tmp_path / "one"}"\n')
    lines: list[str] = []
    lock = synced(base, SyncOptions(), lines)
    assert any(line.startswith("not run    One/install.py: `run_install = true`") for line in lines)
    assert not (base / "custom_nodes" / "One" / "made").exists()
    write_manifest(base, f'[One]\nurl = "{tmp_path / "one"}"\nrun_install = true\n')
    assert state_of(base) == "not installed"
    assert synced(base, SyncOptions()) == lock, "files of the script are of this machine alone"
    assert (base / "custom_nodes" / "One" / "made").read_text() == f"{base / 'custom_nodes' / 'One'}{base}"
    assert state_of(base) == "good"
    (base / "custom_nodes" / "One" / "made").unlink()
    synced(base, SyncOptions())
    assert not (base / "custom_nodes" / "One" / "made").exists(), "it ran once"


def test_a_run_that_was_killed_is_done_again_on_the_files_as_fetched(tmp_path: Path) -> None:
    base = tmp_path / "base"
    script = "import pathlib; path = pathlib.Path('__init__.py'); path.write_text(path.read_text() + '# once\\n')"
    write_repository(tmp_path / "one", {"__init__.py": NODE, "install.py": script})
    write_manifest(base, f'[One]\nurl = "{tmp_path / "one"}"\n')
    synced(base, SyncOptions())
    write_manifest(base, f'[One]\nurl = "{tmp_path / "one"}"\nrun_install = true\n')
    with (base / "custom_nodes" / "One" / "__init__.py").open("a") as file:
        file.write("# half of a run\n")
    synced(base, SyncOptions())
    assert (base / "custom_nodes" / "One" / "__init__.py").read_text() == NODE + "# once\n"
    assert state_of(base) == "good"


def collect_from(base: Path, snapshot: Path, wheels: Path) -> None:
    """Collect with pip's index at a folder of wheels, as a machine's own settings of pip name one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(wheels))
        collect_packs(base, snapshot)


def tmp_copy(base: Path, other: Path) -> Path:
    """A base directory with another's manifest and lock, and nothing installed."""
    write_manifest(other, (base / "packs.toml").read_text())
    lock_path(other).write_text(lock_path(base).read_text())
    return other


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "print('no compiler here'); raise SystemExit(3)",
            r"One: install.py failed with exit code 3: no compiler here",
        ),
        ("import os; os.kill(os.getpid(), 9)", "One: install.py failed with signal 9"),
        ("import time; time.sleep(60)", r"One: install.py takes longer than 0.5 s \(--install-seconds\)"),
        (
            "import os, subprocess, sys; os.environ.pop('PIP_CONSTRAINT')\n"
            "subprocess.run([sys.executable, '-m', 'pip', 'install', 'torch==0.0.1'], check=True)",
            "One: install.py would move torch 0.0.1; expected torch .* kept as it is",
        ),
    ],
    ids=["exit code", "signal", "time", "torch"],
)
def test_a_script_that_fails_is_named_and_the_packs_stay_as_they_were(
    tmp_path: Path, script: str, message: str
) -> None:
    base, wheels = tmp_path / "base", tmp_path / "wheels"
    write_wheel(wheels, "torch", "0.0.1")
    write_repository(tmp_path / "one", {"__init__.py": NODE})
    manifest = f'[One]\nurl = "{tmp_path / "one"}"\nrun_install = true\n'
    write_manifest(base, manifest)
    before = synced(base, SyncOptions(wheels=wheels))
    write_repository(tmp_path / "one", {"install.py": script, "__init__.py": NODE + "# newer\n"})
    write_repository(tmp_path / "two", {"__init__.py": NODE})
    write_manifest(base, f'[Two]\nurl = "{tmp_path / "two"}"\n{manifest}')
    seconds = 0.5 if "sleep" in script else 60.0
    with pytest.raises(InstallScriptFailed, match=message):
        synced(base, SyncOptions(wheels=wheels, is_update=True, install_seconds=seconds))
    assert read_lock(lock_path(base)) == before
    assert sorted(path.name for path in (base / "custom_nodes").iterdir()) == ["One"]
    assert (base / "custom_nodes" / "One" / "__init__.py").read_text() == NODE
    assert not layer_folders(base)
    write_manifest(base, manifest)
    assert state_of(base) == "good"
