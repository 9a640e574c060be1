"""`darkroom nodes install`: pip's own work, done only when it moves nothing that the engine stands on."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from darkroom.engine.comfy.known_names import read_known_names
from darkroom.engine.comfy.packs.assumed_packages import assumed_packages, is_importable, unmet_imports
from darkroom.engine.comfy.packs.discovery import find_packs
from darkroom.engine.comfy.packs.requirements import planned_installs
from darkroom.engine.comfy.packs.sync.packages import requirements_of
from darkroom.engine.engine import Engine
from darkroom.engine.settings import EngineSettings
from tests.engine.comfy.loading import write_pack


def write_wheel(folder: Path, name: str, version: str, requires: str = "") -> Path:
    """The smallest wheel there is: one module that says its version."""
    folder.mkdir(exist_ok=True)
    about = f"{name}-{version}.dist-info"
    needed = f"Requires-Dist: {requires}\n" if requires else ""
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needed}",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{about}/RECORD"] = "".join(f"{file},,\n" for file in (*files, f"{about}/RECORD"))
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file, content in files.items():
            wheel.writestr(file, content)
    return path


def write_requirements(pack: Path, wheels: Path, *lines: str) -> None:
    (pack / "requirements.txt").write_text("\n".join(["--no-index", f"--find-links {wheels}", *lines]) + "\n")


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter of its own that also sees this one's packages; what is installed goes there."""
    home = tmp_path_factory.mktemp("interpreter")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    folder = next((home / "lib").glob("python3*")) / "site-packages"
    (folder / "beneath.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return home / "bin" / "python"


def installed(python: Path, pack: Path, constraints: Path | None = None) -> tuple[int, str]:
    """The command's own function, without loading the engine each time."""
    imports = "from pathlib import Path; from darkroom.engine.comfy.packs.requirements import install"
    code = f"{imports}; raise SystemExit(install({{}}))"
    limits = None if constraints is None else str(constraints)
    source = code.format(f"Path({str(pack)!r}), {limits!r} and Path({limits!r})")
    return ran(python, "-c", source)


def ran(python: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run([str(python), *arguments], capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout + done.stderr


def test_what_a_pack_asks_for_is_installed_and_only_then(tmp_path: Path, python: Path) -> None:
    pack = write_pack(tmp_path, "asks", "from dr_tiny import VERSION\nNODE_CLASS_MAPPINGS = {}")
    wheels = write_wheel(tmp_path / "wheels", "dr_tiny", "1.5").parent
    write_requirements(pack, wheels, "dr_tiny")
    install = ("-m", "darkroom.engine", "nodes", "install", str(pack))
    code, said = ran(python, *install, "--dry-run")
    assert code == 0, said
    assert "dr-tiny 1.5" in said
    assert ran(python, "-c", "import dr_tiny")[0] != 0
    code, said = ran(python, *install)
    assert code == 0, said
    assert ran(python, "-c", "import dr_tiny; print(dr_tiny.VERSION)") == (0, "1.5\n")


@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_a_pack_that_would_move_what_the_engine_stands_on_is_refused(tmp_path: Path, python: Path, name: str) -> None:
    pack = write_pack(tmp_path, "mover", "")
    wheels = write_wheel(tmp_path / "wheels", name, "0.0.1").parent
    write_wheel(wheels, "dr_mover", "1.0", requires=f"{name}==0.0.1")
    for line in (f"{name}==0.0.1", "dr_mover"):
        write_requirements(pack, wheels, line)
        code, said = installed(python, pack)
        assert code == 1
        assert f"{name}=={metadata.version(name)}" in said
        assert "never move" in said
        assert "nothing was changed" in said
    assert ran(python, "-c", "import dr_mover")[0] != 0


def test_requirements_against_the_exact_versions_are_reported_as_a_conflict(tmp_path: Path, python: Path) -> None:
    pack = write_pack(tmp_path, "newer", "")
    wheels = write_wheel(tmp_path / "wheels", "dr_newer", "2.0").parent
    write_requirements(pack, wheels, "dr_newer>=2")
    exact = tmp_path / "constraints.txt"
    exact.write_text("dr_newer==1.0\n")
    code, said = installed(python, pack, exact)
    assert code == 1
    assert "dr_newer" in said
    assert "newer: its requirements conflict" in said
    assert ran(python, "-c", "import dr_newer")[0] != 0


def test_a_pack_without_requirements_needs_nothing(tmp_path: Path, python: Path) -> None:
    code, said = installed(python, write_pack(tmp_path, "plain", ""))
    assert (code, said) == (0, "plain asks for nothing: it has no requirements.txt\n")


def test_the_engine_itself_installs_nothing(tmp_path: Path) -> None:
    pack = write_pack(tmp_path, "asks", "import dr_never\nNODE_CLASS_MAPPINGS = {}")
    write_requirements(pack, write_wheel(tmp_path / "wheels", "dr_never", "1.5").parent, "dr_never")
    assert [pack.name for pack in find_packs([tmp_path / "custom_nodes"])] == ["asks"]
    with Engine(EngineSettings(base_directory=tmp_path, cpu=True)) as engine:
        assert "No module named 'dr_never'" in str(engine.load_custom_nodes()[0].error)


def test_only_what_pip_would_install_is_planned() -> None:
    report = {"install": [{"metadata": {"name": "Some_Thing", "version": "3"}}]}
    assert planned_installs(report) == [("some-thing", "3")]
    assert planned_installs({}) == []


def test_packages_that_every_comfyui_has_are_found_in_what_a_pack_imports(tmp_path: Path) -> None:
    source = """
        import einops, torch, os
        from . import more
        import strange_module

        try:
            import perhaps
        except ImportError:
            perhaps = None

        def late():
            from kornia.filters import box_blur
            import transformers
    """
    pack = write_pack(
        tmp_path, "imports", source, more="import yaml, comfy.utils, model_management, more\nimport psutil"
    )
    (pack / "requirements.txt").write_text("Psutil >= 5\n")
    (pack / "tests").mkdir()
    (pack / "tests" / "test_it.py").write_text("import spandrel, pytest_only")
    (pack / "broken.py").write_text("this is no Python")
    here = {"torch", "yaml", "transformers"}
    assert assumed_packages(pack, here.__contains__) == ["einops", "kornia"]
    known = read_known_names()
    served = {*known.roots, *known.bare}
    assert unmet_imports(pack, served, here.__contains__) == ["einops", "psutil", "strange_module"]


def test_what_a_pack_imports_is_installed_though_it_does_not_name_it(tmp_path: Path) -> None:
    pack = write_pack(tmp_path, "silent", "import spandrel")
    asked = requirements_of("silent", pack, [])
    assert asked.lines == ("" if is_importable("spandrel") else "spandrel")
    assert requirements_of("silent", pack, ["spandrel"]).lines == ""
