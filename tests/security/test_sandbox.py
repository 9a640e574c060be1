"""A hostile node pack at each level of ENGINE_SANDBOX: what it gets, and what is kept out."""

from __future__ import annotations

import base64
import json
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from darkroom.worker.engines.command import engine_command
from darkroom.worker.engines.loss import LossReason
from darkroom.worker.engines.sandbox import Sandbox
from darkroom.worker.engines.sandbox_start import find_user, prepare, try_sandbox
from darkroom.worker.errors import EngineStartFailed, SettingsInvalid
from darkroom.worker.settings.engines import EngineLaunch, SandboxConfig
from darkroom.worker.settings.environment import load_settings
from tests.flow.running_worker import ROOT, RunningWorker, stop, wait_until_ready
from tests.s3_server import free_ports
from tests.security.worker_process import IMAGE, job, processes_below
from tests.worker.adjusted_front import program

ENGINE_UID = 10002
OTHER_UID = 12345
MAX_PROCESSES = 400
MAX_FILE_BYTES = 8 * 2**20
MAX_MEMORY_BYTES = 6 * 2**30
LIMITS = {
    "max_processes": MAX_PROCESSES,
    "max_file_bytes": MAX_FILE_BYTES,
    "max_memory_bytes": MAX_MEMORY_BYTES,
}
IS_ROOT = os.geteuid() == 0
PACK = Path(__file__).parent / "hostile_pack"


@dataclass(frozen=True, slots=True)
class Level:
    """`uid` None: the front runs as the user of the tests."""

    name: str
    uid: int | None = None


@dataclass(frozen=True, slots=True)
class Attacked:
    level: Level
    worker: RunningWorker

    def attack(self, name: str) -> Any:
        base = self.worker.base
        told = {
            "state": str(base / "state"),
            "files": [str(base / ".env")],
            "folders": [str(base), str(base / "models"), str(base / "custom_nodes"), str(base / "input")],
            "output": str(base / "output"),
            "input": str(base / "input"),
            "front": self.worker.process.pid,
            "port": httpx.URL(self.worker.url).port,
            "memory_bytes": 2 * MAX_MEMORY_BYTES,
        }
        inputs = {"attack": name, "told": json.dumps(told)}
        reply = self.worker.generate(job({"1": {"class_type": "Hostile", "inputs": inputs}})).json()
        texts = [output["text"] for output in reply["output"] if "text" in output]
        assert texts or name == "link", reply
        return json.loads(texts[0]) if texts else reply


def interpreter_for(uid: int | None) -> tuple[str, str]:
    """An interpreter that the user can run, and the PYTHONPATH with which it finds the packages. Skips without one."""
    packages = f"{ROOT}:{sysconfig.get_paths()['purelib']}"
    if uid is None:
        return sys.executable, packages
    for name in (sys.executable, "/usr/bin/python3"):
        script = f"exec {name} -c 'import sys; print(sys.version_info[:2])'"  # setpriv's own exec has root's rights
        command = ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups", "sh", "-c", script]
        found = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd="/")
        if found.stdout.strip() == str(sys.version_info[:2]):
            return name, packages
    pytest.skip(f"no interpreter of version {platform.python_version()} that user {uid} may run")


def skip_where_impossible(level: Level) -> None:
    if (level.uid is not None or level.name == "user") and not IS_ROOT:
        pytest.skip("only root can start processes of other users")
    if level.name == "bwrap":
        if shutil.which("bwrap") is None:
            pytest.skip("bubblewrap is not installed")
        as_user = [] if level.uid is None else ["setpriv", "--reuid", str(level.uid), "--clear-groups"]
        with_users = [] if IS_ROOT and level.uid is None else ["--unshare-user"]
        options = [*with_users, "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
        made = subprocess.run([*as_user, "bwrap", *options], capture_output=True, text=True)
        if made.returncode:
            pytest.skip(f"namespaces cannot be made here: {made.stderr.strip()}")


@contextmanager
def attacked(level: Level, **environment: str) -> Iterator[Attacked]:
    """A worker with the pack, in a folder that other users can enter, unlike pytest's."""
    skip_where_impossible(level)
    is_engine_foreign = level.name == "user"
    python, packages = interpreter_for(ENGINE_UID if is_engine_foreign else level.uid)
    base = Path(tempfile.mkdtemp(prefix="darkroom-sandbox-"))
    base.chmod(0o755)
    shutil.copytree(PACK, base / "custom_nodes" / "hostile", ignore=shutil.ignore_patterns("__pycache__"))
    (base / ".env").write_text("WEBHOOK_SECRET=planted-file\n")
    (base / ".env").chmod(0o600)
    if level.uid is not None:
        for path in (base, *base.rglob("*")):
            os.chown(path, level.uid, level.uid)
    (port,) = free_ports(1)
    settings = {
        **{name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ},
        "PYTHONPATH": packages,
        "PYTHONDONTWRITEBYTECODE": "1",
        "HOME": str(base),
        "BASE_DIRECTORY": str(base),
        "WORKER_PORT": str(port),
        "ENGINE_SANDBOX": level.name,
        "ENGINE_USER": str(ENGINE_UID),
        "S3_SECRET_ACCESS_KEY": "planted-setting",
        "HF_TOKEN": "planted-token",
        "CPU": "true",
        "PRECISION": "fp32",
        "BENCHMARK": "off",
        "OMP_NUM_THREADS": "1",
        **environment,
    }
    as_user = [] if level.uid is None else ["setpriv", "--reuid", str(level.uid), "--regid", str(level.uid)]
    as_user += ["--clear-groups"] if as_user else []
    log = base.with_suffix(".log")
    with log.open("ab") as output:
        process = subprocess.Popen(
            [*as_user, python, *program({"sandbox": LIMITS})],
            cwd=base,
            env=settings,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:
            worker = RunningWorker(f"http://127.0.0.1:{port}", base, log, process, http)
            wait_until_ready(worker)
            yield Attacked(level, worker)
    finally:
        if process.poll() is None:
            stop(worker)
        shutil.rmtree(base)
        log.unlink()


LEVELS = [
    pytest.param(Level("user"), id="user"),
    pytest.param(Level("bwrap"), id="bwrap"),
    pytest.param(Level("bwrap", OTHER_UID), id="bwrap-without-root", marks=pytest.mark.slow),
]


@pytest.fixture(scope="module", params=LEVELS)
def sandboxed(request: pytest.FixtureRequest) -> Iterator[Attacked]:
    with attacked(request.param) as running:
        yield running


def test_no_secret_is_readable(sandboxed: Attacked) -> None:
    assert sandboxed.worker.generate(job(IMAGE)).json()["status"] == "completed"  # another job, with its output
    own = str(
        sandboxed.worker.base / "state" / "custom_nodes.json"
    )  # which the engine itself writes, in a folder of its own
    assert [path for path in sandboxed.attack("secrets") if path != own] == []
    assert not Path(own).exists()
    assert sandboxed.attack("environments") == {"own": [], "others": []}


def test_inputs_of_other_jobs_cannot_be_found(sandboxed: Attacked) -> None:
    """The job that has one reads it, by a name that only its content gives."""
    image = sandboxed.worker.output_bytes(sandboxed.worker.generate(job(IMAGE)).json())
    address = f"data:image/png;base64,{base64.b64encode(image).decode()}"
    reads = {
        "1": {"class_type": "LoadImage", "inputs": {"image": address}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "read"}},
    }
    reply = sandboxed.worker.generate(job(reads)).json()
    assert reply["status"] == "completed", reply
    assert list((sandboxed.worker.base / "input" / "darkroom").iterdir())
    found = sandboxed.attack("inputs")
    assert found == [] if sandboxed.level.uid is None else found


def test_the_front_is_out_of_reach(sandboxed: Attacked) -> None:
    reached = sandboxed.attack("signals")
    assert "reached" not in reached.values()
    assert sandboxed.attack("sockets") == []
    if sandboxed.level.name == "bwrap":
        assert sandboxed.attack("processes") == []
        assert reached["end"] == "ProcessLookupError"


def test_the_network_is_kept_out_by_namespaces_alone(sandboxed: Attacked) -> None:
    expected = "reached" if sandboxed.level.name == "user" else "OSError"
    found = sandboxed.attack("network")
    assert found == expected or (expected == "OSError" and found in ("ConnectionRefusedError", "OSError"))


def test_processes_memory_and_files_have_limits(sandboxed: Attacked) -> None:
    assert 0 < sandboxed.attack("forks") < MAX_PROCESSES
    assert sandboxed.attack("memory") == "refused"
    found = sandboxed.attack("disk")
    assert found["written"] == []
    assert not list(sandboxed.worker.base.rglob("hostile-file"))
    assert found["largest"] <= MAX_FILE_BYTES


def test_there_is_no_way_back(sandboxed: Attacked) -> None:
    assert sandboxed.attack("privileges") == {"found": [], "may_gain": False}


def test_a_link_to_the_database_is_no_output(sandboxed: Attacked) -> None:
    reply = sandboxed.attack("link")
    assert "stolen" not in json.dumps(reply.get("output"))
    (sandboxed.worker.base / "output" / "stolen_00001_.png").unlink()
    assert sandboxed.worker.generate(job(IMAGE)).json()["status"] == "completed"


def test_the_worker_serves_on_after_all_of_it(sandboxed: Attacked) -> None:
    assert sandboxed.worker.generate(job(IMAGE)).json()["status"] == "completed"
    (backend,) = sandboxed.worker.get("/health").json()["backends"]
    assert backend["state"] == "up" and backend["memory_bytes"] > 50_000_000 and not sum(backend["restarts"].values())
    if os.geteuid() == 0:
        uid = ENGINE_UID if sandboxed.level.uid is None else sandboxed.level.uid
        assert os.stat(f"/proc/{backend['pid']}").st_uid in (uid, 0)  # root's where it may not be traced


@pytest.mark.skipif(not IS_ROOT, reason="only root sees the processes of all users")
def test_a_killed_engine_takes_its_daemons_along_and_comes_back() -> None:
    """Those of a namespace; elsewhere a process that leaves its group stays, as the docs say."""
    with attacked(Level("bwrap")) as running:
        running.attack("daemon")
        assert any("sleep\x004242" in command_line(pid) for pid in processes_below(running.worker.process.pid))
        (backend,) = running.worker.get("/health").json()["backends"]
        os.kill(backend["pid"], 9)
        while not (restarts := running.worker.get("/health").json()["backends"][0]["restarts"]):
            pass
        wait_until_ready(running.worker)
        assert restarts == {LossReason.CRASHED.value: 1}
        assert not [pid for pid in all_processes() if "sleep\x004242" in command_line(pid)]
        assert running.worker.generate(job(IMAGE)).json()["status"] == "completed"


@pytest.mark.slow
def test_without_a_sandbox_the_same_attacks_succeed() -> None:
    """Or the tests above would show nothing."""
    with attacked(Level("off")) as running:
        assert any(path.endswith("darkroom.db") for path in running.attack("secrets"))
        assert running.attack("environments")["own"] == []
        assert running.attack("signals") == {"end": "reached", "memory": "reached"}
        assert running.attack("network") == "reached"
        assert running.attack("memory") == "given"
        assert running.attack("disk")["largest"] > MAX_FILE_BYTES
        assert len(list(running.worker.base.rglob("hostile-file"))) >= 3


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def all_processes() -> list[int]:
    return [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]


# starts that are refused


def sandbox_of(tmp_path: Path, hidden: tuple[Path, ...] = (), **config: Any) -> Sandbox:
    sandbox = SandboxConfig(**config)
    launch = EngineLaunch(base_directory=tmp_path, metadata="none", is_cpu=True, sandbox=sandbox, hidden=hidden)
    made = engine_command(launch, {}, frozenset(), user=find_user(launch.sandbox.level, launch.sandbox.user))
    assert made.sandbox is not None
    return made.sandbox


@pytest.mark.skipif(not IS_ROOT, reason="the engine's user is found by root alone")
@pytest.mark.parametrize(
    ("user", "words"), [("0", "root"), ("nobody-of-that-name", "no such user"), ("", "no such user")]
)
def test_a_user_that_is_none_stops_the_start(tmp_path: Path, user: str, words: str) -> None:
    with pytest.raises(EngineStartFailed, match=words):
        sandbox_of(tmp_path, level="user", user=user)


def test_a_front_without_root_cannot_change_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(EngineStartFailed, match="ENGINE_SANDBOX: `user` needs a front that runs as root; got uid 1000"):
        sandbox_of(tmp_path, level="user", user="10002")


def test_a_machine_without_bubblewrap_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EngineStartFailed, match=r"bwrap \(package bubblewrap\)"):
        try_sandbox(sandbox_of(tmp_path, level="bwrap", user="10002"), {})


def test_a_sandbox_that_cannot_be_made_stops_the_start_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bwrap", "setpriv"):
        (tmp_path / name).write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(EngineStartFailed, match=r"No permissions to create new namespace.*docs/security\.md#sandbox"):
        try_sandbox(sandbox_of(tmp_path, level="bwrap", user="10002"), dict(os.environ))


@pytest.mark.skipif(not IS_ROOT, reason="needs another user")
def test_folders_that_the_engines_user_cannot_enter_stop_the_start(tmp_path: Path) -> None:
    interpreter_for(ENGINE_UID)
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    sandbox = sandbox_of(private, level="user", user="10002")
    prepare(sandbox)
    with pytest.raises(EngineStartFailed, match="ENGINE_SANDBOX"):
        try_sandbox(sandbox, dict(os.environ))


def test_namespaces_and_a_port_do_not_go_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_SANDBOX", "bwrap")
    monkeypatch.setenv("ENGINE_ARGS", "--port 8188")
    with pytest.raises(SettingsInvalid, match="ENGINE_ARGS.*no network"):
        load_settings(env_file=None)


def test_the_whole_package_is_inside_and_nothing_beside_it(tmp_path: Path) -> None:
    """A room that the package has only since today, too: none of them is listed by name."""
    sandbox = sandbox_of(tmp_path, level="bwrap", user="10002")
    rooms = [path.resolve() for path in (ROOT / "darkroom").iterdir() if path.is_symlink()]
    assert {"engine", "host", "contract"} <= {path.name for path in rooms}
    mounts = sandbox.program(["true"])
    assert all(str(path) in mounts for path in (ROOT / "darkroom", *rooms))
    package = tmp_path / "darkroom"
    (package / "engine").mkdir(parents=True)
    (tmp_path / "newcomer").mkdir()
    (tmp_path / ".env").touch()
    (package / "newcomer").symlink_to("../newcomer")
    mounts = replace(sandbox, places=replace(sandbox.places, package=package)).program(["true"])
    assert {str(package), str(tmp_path / "newcomer")} <= set(mounts)
    assert str(tmp_path / ".env") not in mounts


def test_a_secret_below_a_readable_folder_is_covered(tmp_path: Path) -> None:
    (tmp_path / "models" / "state").mkdir(parents=True)
    (tmp_path / "models" / "key").touch()
    hidden = (tmp_path / "models" / "state", tmp_path / "models" / "key", tmp_path / "elsewhere")
    mounts = sandbox_of(tmp_path, level="bwrap", user="10002", hidden=hidden).program(["true"])
    assert [mounts[mounts.index(str(path)) - 1] for path in hidden[:2]] == ["--tmpfs", "/dev/null"]
    assert str(hidden[2]) not in mounts
