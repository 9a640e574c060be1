"""A node pack that tries to reach what it must not. Each attack reports what it got; it does no harm beyond that."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PLANTED = b"planted-"
MAX_FORKS = 1500
FILE_BYTES = 64 * 2**20
PRIVATE_FOLDERS = ("state",)


def readable_files(folder: Path) -> list[str]:
    """Everything below a folder that can be opened."""
    found = []
    for root, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError), open(os.path.join(root, name), "rb") as file:
                file.read(1)
                found.append(os.path.join(root, name))
    return sorted(found)


def environments(told: dict[str, Any]) -> Any:
    """Processes whose environment or memory shows a planted secret."""
    own = [name for name, value in os.environ.items() if value.encode().startswith(PLANTED)]
    others = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if PLANTED in (folder / "environ").read_bytes():
                others.append(int(folder.name))
    return {"own": own, "others": others}


def processes(told: dict[str, Any]) -> Any:
    """Command lines of other processes."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
    return [line for line in found if "-m darkroom.worker" in line]


def secrets(told: dict[str, Any]) -> Any:
    return [*readable_files(Path(told["state"])), *filter(is_readable, told["files"])]


def is_readable(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return PLANTED in file.read()
    except OSError:
        return False


def inputs(told: dict[str, Any]) -> Any:
    """The input files of other jobs."""
    return readable_files(Path(told["input"]))


def signals(told: dict[str, Any]) -> Any:
    """Try to end the front, and to look into its memory."""
    try:
        os.kill(told["front"], 0)
    except OSError as error:
        can_end = type(error).__name__
    else:
        can_end = "reached"
    try:
        with open(f"/proc/{told['front']}/mem", "rb"):
            can_read = "reached"
    except OSError as error:
        can_read = type(error).__name__
    return {"end": can_end, "memory": can_read}


def network(told: dict[str, Any]) -> Any:
    try:
        with socket.create_connection(("127.0.0.1", told["port"]), timeout=5):
            return "reached"
    except OSError as error:
        return type(error).__name__


def sockets(told: dict[str, Any]) -> Any:
    """Try to connect to an engine's own socket, this one's or another's."""
    reached = []
    for path in Path(told["state"], "engine").glob("*.sock") if os.access(told["state"], os.X_OK) else ():
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            reached.append(str(path))
    return reached


def forks(told: dict[str, Any]) -> Any:
    """Count the processes that can be started at once."""
    children: list[int] = []
    try:
        while len(children) < MAX_FORKS:
            pid = os.fork()
            if pid == 0:
                signal.pause()
                os._exit(0)
            children.append(pid)
    except OSError:
        pass
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return len(children)


def disk(told: dict[str, Any]) -> Any:
    """Return the folders that a file can be written to, and the largest size of one."""
    written = []
    for folder in told["folders"]:  # the file stays: it may be in a folder of the sandbox's own
        with contextlib.suppress(OSError):
            Path(folder, "hostile-file").write_bytes(b"x")
    for folder in ("/", "/usr", "/etc", "/dev", str(Path(__file__).parent)):
        path = Path(folder, "hostile-file")
        with contextlib.suppress(OSError):
            path.write_bytes(b"x")
            path.unlink()
            written.append(folder)
    path, size = Path(told["output"], "hostile-large"), 0
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while size < FILE_BYTES:
            size += file.write(b"\0" * 2**20)
    path.unlink(missing_ok=True)
    return {"written": written, "largest": size}


def memory(told: dict[str, Any]) -> Any:
    """Try to allocate so much memory; it is not touched."""
    try:
        bytearray(told["memory_bytes"])
    except MemoryError:
        return "refused"
    return "given"


def privileges(told: dict[str, Any]) -> Any:
    """Ways back: root's rights, namespaces of its own, higher limits."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    if os.geteuid() == 0:
        found.append("root")
    with contextlib.suppress(OSError):
        os.setuid(0)
        found.append("setuid")
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        found.append("limits")
    if libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0:
        found.append("mount")
    status = Path("/proc/self/status").read_text()
    if "CapEff:\t0000000000000000" not in status or "CapPrm:\t0000000000000000" not in status:
        found.append("capabilities")
    return {"found": found, "may_gain": "NoNewPrivs:\t0" in status}


def link(told: dict[str, Any]) -> Any:
    """A link to the front's database, shown as an output."""
    path = Path(told["output"], "stolen_00001_.png")
    path.unlink(missing_ok=True)
    path.symlink_to(Path(told["state"], "darkroom.db"))
    return "made"


def daemon(told: dict[str, Any]) -> Any:
    """A process that would outlive the engine."""
    started = subprocess.Popen(["sleep", "4242"], start_new_session=True)
    time.sleep(0.1)
    return started.pid


ATTACKS: dict[str, Callable[[dict[str, Any]], Any]] = {
    attack.__name__: attack
    for attack in (
        *(environments, processes, secrets, inputs, signals, network, sockets),
        *(forks, disk, memory, privileges, link, daemon),
    )
}


class Hostile:
    RETURN_TYPES = ()
    FUNCTION = "attack"
    OUTPUT_NODE = True
    CATEGORY = "hostile"

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:
        return {"required": {"attack": ("STRING", {}), "told": ("STRING", {})}}

    @classmethod
    def IS_CHANGED(cls, **_: Any) -> float:
        return time.time()

    def attack(self, attack: str, told: str) -> dict[str, Any]:
        found = ATTACKS[attack](json.loads(told))
        shown: dict[str, Any] = {"text": [json.dumps(found)]}
        if attack == "link":
            shown["images"] = [{"filename": "stolen_00001_.png", "subfolder": "", "type": "output"}]
        return {"ui": shown}


NODE_CLASS_MAPPINGS = {"Hostile": Hostile}
