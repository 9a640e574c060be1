"""Checks of models, packs and the state directory."""

from __future__ import annotations

from pathlib import Path

from filelock import FileLock

from darkroom.worker.doctor.check import Status
from darkroom.worker.doctor.files import check_models, check_packs, check_state


def test_models_that_broke_off_are_named(tmp_path: Path) -> None:
    assert "darkroom models fetch" in check_models(tmp_path / "models").remedy
    folder = tmp_path / "models" / "checkpoints"
    folder.mkdir(parents=True)
    (folder / "good.safetensors").write_bytes(b"x")
    assert check_models(tmp_path / "models").status is Status.GOOD
    (folder / "empty.safetensors").touch()
    (folder / "half.safetensors.partial").write_bytes(b"x")
    check = check_models(tmp_path / "models")
    assert check.status is Status.FAILED and "empty.safetensors" in check.detail and "half" in check.detail


def test_packages_that_a_pack_lacks_are_named_with_the_command_that_installs_them(tmp_path: Path) -> None:
    assert check_packs(tmp_path / "none").status is Status.SKIPPED
    pack = tmp_path / "fancy"
    pack.mkdir()
    (pack / "__init__.py").touch()
    (pack / "requirements.txt").write_text("# for images\nPillow>=9\nnumpy\n")
    assert check_packs(tmp_path).status is Status.GOOD
    (pack / "requirements.txt").write_text("no-such-package-here>=1\ngit+https://example.com/a.git\n")
    check = check_packs(tmp_path)
    assert check.status is Status.FAILED and "no-such-package-here" in check.detail
    assert f"darkroom nodes install {pack}" in check.remedy


def test_a_state_directory_on_the_network_is_a_warning(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(f"a / ext4 rw 0 0\nb {tmp_path} nfs4 rw 0 0\n")
    check = check_state(tmp_path, is_within_worker=False, mounts=mounts)
    assert check.status is Status.WARNING and "nfs4" in check.detail and "STATE_DIRECTORY" in check.remedy


def test_a_state_directory_that_a_worker_holds_is_no_fault_and_is_not_locked_by_the_check(tmp_path: Path) -> None:
    (tmp_path / "holder").write_text("process 7, since noon")
    with FileLock(tmp_path / "lock"):
        assert "process 7" in check_state(tmp_path, is_within_worker=False).detail
    assert "process 7" not in check_state(tmp_path, is_within_worker=False).detail
    with FileLock(tmp_path / "lock", timeout=0):
        pass
