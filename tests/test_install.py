"""Installations of a user and of the image: the Dockerfile's steps in their order, the exact versions, the wheel."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import ssl
import subprocess
import sys
import threading
import tomllib
import zipfile
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.engine.server.certificate import write_certificate
from tests.installed import InstalledWheel, copy_tracked_files, tracked_files

ROOT = Path(__file__).parents[1]
PACKAGES = ("darkroom", "worker", "engine", "modifiers", "host", "contract")
LOCKS = ROOT / "tools" / "locks"
TORCH_LOCK = LOCKS / "torch-cuda13.txt"
ACCELERATORS = ("cuda13", "cuda12", "cpu")
HASHED_LOCKS = (LOCKS / "build.txt", LOCKS / "image.txt", TORCH_LOCK)


@dataclass(frozen=True)
class Step:
    """One instruction of the Dockerfile; `stage` counts from 0, and what stands before the first is of stage -1."""

    stage: int
    keyword: str
    text: str

    def sources(self, accelerator: str = "cuda13") -> list[str]:
        """Return the files that a COPY takes from the build context; nothing when it takes from another stage."""
        words = [word for word in shlex.split(self.text) if not word.startswith("--chown")]
        return [] if words[0].startswith("--from") else [expand(word, accelerator) for word in words[:-1]]


def expand(text: str, accelerator: str) -> str:
    return text.replace("${ACCELERATOR}", accelerator)


def dockerfile_steps() -> list[Step]:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    steps: list[Step] = []
    stage = -1
    for line in filter(str.strip, text.splitlines()):
        keyword, _, rest = line.partition(" ")
        stage += keyword == "FROM"
        steps.append(Step(stage, keyword, rest.strip()))
    return steps


def values(keyword: str) -> list[str]:
    return [step.text for step in dockerfile_steps() if step.keyword == keyword]


def position(fragment: str) -> int:
    """Return the index of the last stage's step that holds the text."""
    last = [step for step in dockerfile_steps() if step.stage == max(step.stage for step in dockerfile_steps())]
    return next(index for index, step in enumerate(last) if fragment in step.text)


def requirements() -> list[str]:
    dependencies: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return dependencies


@pytest.mark.parametrize("accelerator", ACCELERATORS)
def test_everything_the_image_copies_is_in_the_repository(accelerator: str) -> None:
    tracked = {str(path) for path in tracked_files(ROOT)}
    for step in dockerfile_steps():
        if step.keyword == "COPY":
            for source in step.sources(accelerator):
                assert source in tracked or any(name.startswith(f"{source}/") for name in tracked), source


def test_the_build_context_lets_in_everything_the_image_copies() -> None:
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    sources = [source for step in dockerfile_steps() if step.keyword == "COPY" for source in step.sources()]
    assert {source.split("/")[0] for source in sources} <= allowed


def test_layers_that_change_rarely_lie_below_those_that_change_often() -> None:
    order = ["apt-get", "-m venv", "--requirement torch.txt", "--requirement image.txt", "darkroom_worker-*.whl"]
    assert [position(fragment) for fragment in order] == sorted(position(fragment) for fragment in order)


def test_only_the_lock_of_pytorch_invalidates_the_layer_of_pytorch() -> None:
    last = max(step.stage for step in dockerfile_steps())
    steps = [step for step in dockerfile_steps() if step.stage == last][: position("--requirement torch.txt")]
    assert [step.text for step in steps if step.keyword == "COPY"] == ["tools/locks/torch-${ACCELERATOR}.txt torch.txt"]


def test_no_layer_keeps_the_wheel_or_a_package_index() -> None:
    last = max(step.stage for step in dockerfile_steps())
    steps = [step for step in dockerfile_steps() if step.stage == last]
    assert not [step for step in steps if step.keyword == "COPY" and "--from" in step.text]
    assert "--mount=type=bind,from=wheel" in steps[position("darkroom_worker-*.whl")].text
    for step in dockerfile_steps():
        assert "apt-get install" not in step.text or "rm -rf /var/lib/apt/lists/*" in step.text
        assert " pip install" not in step.text or "--no-cache-dir" in step.text


def test_the_image_is_built_for_two_cudas_and_for_the_cpu() -> None:
    arguments = dict(text.split("=", 1) for text in values("ARG") if "=" in text)
    assert arguments["ACCELERATOR"] == "cuda13"
    assert {"git", "ffmpeg", "libgl1"} <= set(shlex.split(arguments["SYSTEM_PACKAGES"])[0].split())
    stages = {text.rpartition(" AS ")[2] for text in values("FROM")}
    assert {f"base-{accelerator}" for accelerator in ACCELERATORS} <= stages
    versions = {locked(LOCKS / f"torch-{accelerator}.txt")["torch"].partition("+")[0] for accelerator in ACCELERATORS}
    assert len(versions) == 1, "run tools/lock.sh --hashes"


def test_the_image_s_lock_leaves_the_build_of_pytorch_to_its_own_lock() -> None:
    assert not [
        name for name in locked(LOCKS / "image.txt") if re.match(r"torch$|triton$|cuda-|nvidia-(?!ml-py)", name)
    ]


def test_the_image_runs_as_a_numbered_user_without_rights_and_its_data_survives_in_a_child_image() -> None:
    assert values("USER") == ["10001:10001"], "Kubernetes' runAsNonRoot asks for a number"
    assert values("VOLUME") == [], "what a child image puts below a volume is discarded"
    assert "BASE_DIRECTORY=/base" in values("ENV")[-1]
    assert "WORKER_HOST=0.0.0.0" in values("ENV")[-1]
    assert json.loads(values("CMD")[-1]) == ["darkroom", "serve"]


class _Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.mark.parametrize("uses_ssl", ["false", "True"])
def test_the_health_check_asks_the_workers_own_route_and_no_proxy(uses_ssl: str, tmp_path: Path) -> None:
    words = json.loads(values("HEALTHCHECK")[0].partition("CMD ")[2])
    assert words[:3] == ["python", "-m", "darkroom.probe"]
    command = [sys.executable, str(ROOT / "darkroom" / "probe.py"), *words[3:]]
    with ThreadingHTTPServer(("127.0.0.1", 0), _Healthy) as server:
        if uses_ssl == "True":
            key, certificate = write_certificate(tmp_path)
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        proxies = dict.fromkeys(("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"), "http://127.0.0.1:9")
        environment = {"WORKER_PORT": str(server.server_port), "USE_SSL": uses_ssl, **proxies}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        there = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        server.shutdown()
    gone = subprocess.run(command, env=environment, capture_output=True, check=False)
    assert there.returncode == 0, there.stderr
    assert gone.returncode != 0


def test_no_weights_but_the_demo_models_travel_with_the_image() -> None:
    heavy = (".safetensors", ".ckpt", ".pt", ".pth", ".gguf")
    found = [path for path in tracked_files(ROOT) if path.suffix in heavy and path.parts[0] in PACKAGES]
    assert [path.name for path in found] == ["darkroom-emoji.safetensors"]
    assert (ROOT / found[0]).stat().st_size <= 32 * 2**20


def test_every_requirement_has_an_exact_version() -> None:
    constraints = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {line.partition("==")[0].lower().replace("_", "-") for line in constraints if "==" in line}
    wanted = {re.split(r"[\[>=<]", line)[0].lower().replace("_", "-") for line in requirements()}
    assert wanted <= pinned
    assert not [line for line in constraints if line and not re.fullmatch(r"#.*|[A-Za-z0-9_.-]+==[\w.]+", line)]


def locked(lock: Path) -> dict[str, str]:
    """Name and version of every package of a lock."""
    entries = re.findall(r"^([A-Za-z0-9_.-]+)(?:\[.*?\])?==([^\s;\\]+)", lock.read_text(), re.MULTILINE)
    return {name.lower().replace("_", "-"): version for name, version in entries}


def test_the_image_s_locks_name_a_hash_for_everything_at_the_exact_versions() -> None:
    pairs = (line.partition("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pinned = {name.lower().replace("_", "-"): version for name, _, version in pairs}
    for lock in HASHED_LOCKS:
        text = re.sub(r"^#.*\n", "", lock.read_text(), flags=re.MULTILINE)
        assert all("--hash=sha256:" in entry for entry in re.split(r"\n(?=\S)", text.strip()))
        versions = locked(lock)
        assert {name: versions[name] for name in versions.keys() & pinned.keys()} == {
            name: pinned[name] for name in versions.keys() & pinned.keys()
        }, f"{lock.name}: run tools/lock.sh --hashes"
    wanted = {re.split(r"[\[>=<]", line)[0].lower().replace("_", "-") for line in requirements()}
    assert wanted <= locked(LOCKS / "image.txt").keys() | {"torch"}, "run tools/lock.sh --hashes"


def test_the_image_s_bases_are_named_by_digest() -> None:
    stages = {text.rpartition(" AS ")[2] for text in values("FROM")}
    outside = [text for text in values("FROM") if expand(text.split()[0], "cpu") not in stages]
    assert len(outside) == 3
    assert all(re.search(r"@sha256:[0-9a-f]{64} AS base-\w+$", base) for base in outside)


def test_the_exact_versions_satisfy_what_the_project_asks_for() -> None:
    """pip's own resolution against this environment, which is installed at those versions, finds nothing left to do."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--no-index", "--report", "-"]
    done = subprocess.run([*command, *requirements()], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["install"] == []


def test_the_wheel_holds_every_tracked_file_of_the_packages(installed_wheel: InstalledWheel) -> None:
    with zipfile.ZipFile(installed_wheel.wheel) as archive:
        inside = set(archive.namelist())
    wanted = {
        str(path if path.parts[0] == "darkroom" else Path("darkroom") / path)
        for path in tracked_files(ROOT)
        if path.parts[0] in PACKAGES
    }
    assert wanted - inside == set()
    assert {name.partition("/")[0] for name in inside if ".dist-info/" not in name} == {"darkroom"}
    assert "darkroom/misc/test_prompts.txt" in inside, "the start-up benchmark draws its prompts from it"


@pytest.mark.parametrize("arguments", [("--help",), ("generate", "--help"), ("serve", "--help"), ("models", "--help")])
def test_the_installed_command_explains_itself(
    arguments: tuple[str, ...], installed_wheel: InstalledWheel, tmp_path: Path
) -> None:
    done = installed_wheel.run(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_images_steps_run_by_hand_in_their_order(tmp_path: Path) -> None:
    """Every step but those that need another user or Debian's packages, with the image's paths moved to a folder.

    PyTorch is the build that pip's settings prefer here, since the locked one brings gigabytes of CUDA.
    """
    context, image = tmp_path / "context", tmp_path / "image"
    copy_tracked_files(ROOT, context)
    directory = {step.stage: image for step in dockerfile_steps()}
    for step in dockerfile_steps():
        text = re.sub(r"--mount=\S+ ", "", expand(step.text, "cuda13"))
        text = re.sub(r"(?<![\w.])/(opt|wheels|build|base|home)\b", rf"{image}/\1", text)
        if step.keyword == "WORKDIR":
            directory[step.stage] = Path(text)
            directory[step.stage].mkdir(parents=True, exist_ok=True)
        elif step.keyword == "COPY":
            for source in step.sources():
                copy_into(context / source, directory[step.stage], text)
        elif step.keyword == "RUN" and not re.search(r"apt-get|useradd", text):
            if "torch.txt" in text:
                text = text.replace("--requirement torch.txt", f"torch=={locked(TORCH_LOCK)['torch']}")
            subprocess.run(text, shell=True, check=True, cwd=directory[step.stage])
    darkroom = image / "opt" / "darkroom" / "bin" / "darkroom"
    assert "Usage" in subprocess.run([darkroom, "--help"], capture_output=True, text=True, check=True).stdout


def copy_into(source: Path, directory: Path, text: str) -> None:
    target = directory / shlex.split(text)[-1]
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    else:
        shutil.copy(source, target)


@pytest.mark.parametrize(("needs", "constrained"), [("filelock, sympy", True), ("filelock, triton, sympy", False)])
def test_tests_get_the_triton_of_their_build_of_pytorch(needs: str, constrained: bool, tmp_path: Path) -> None:
    """A CUDA build names one; with a build for CPUs it is the one that the lock of CUDA 13 names."""
    checkout, log = tmp_path / "checkout", tmp_path / "log"
    for name in ("tools/install.sh", "tools/locks/torch-cuda13.txt", "pyproject.toml", "constraints.txt"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    python = checkout / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(
        f"""#!/bin/sh
case "$*" in
*"show torch") echo "Requires: {needs}" ;;
*--editable*) while [ "$1" != --constraint ]; do shift; done; grep ^triton "$2" >"{log}" || true ;;
*darkroom) exit 1 ;;
esac
"""
    )
    python.chmod(0o755)
    subprocess.run([checkout / "tools" / "install.sh", "test"], check=True, capture_output=True)
    version = locked(TORCH_LOCK)["triton"]
    assert log.read_text() == (f"triton=={version}\n" if constrained else "")


def test_no_constraint_fights_the_triton_that_pytorch_asks_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = (Requirement(line) for line in extras["test"] if line.startswith("triton"))
    assert wanted.specifier.contains(locked(TORCH_LOCK)["triton"])
    assert wanted.marker is not None and not wanted.marker.evaluate({"sys_platform": "darwin"})
    assert "\ntriton==" not in (ROOT / "constraints.txt").read_text()
