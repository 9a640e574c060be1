"""Sandbox: the command before the engine's own, so that node packs reach little besides their own folders.

`user` gives the engine another user than the front's. `bwrap` also gives it namespaces of its own: a read-only file
system of the folders that it needs, no network, and no view of other processes. Root creates the namespaces itself and
then changes to the engine's user; other users need user namespaces.

`program` reads the file system, as a model folder may be a link; nothing here changes anything.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

TMP_BYTES = 2 * 2**30
SHARED_MEMORY_BYTES = 8 * 2**30
SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
DRIVER_FOLDERS = ("/opt/rocm", "/opt/cuda", "/sys")
SYSTEM_FILES = (
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives", "/etc/localtime"),
    *("/etc/passwd", "/etc/group", "/etc/nsswitch.conf", "/etc/mime.types", "/etc/fonts", "/etc/ssl/certs"),
    *("/etc/ssl/openssl.cnf", "/etc/OpenCL", "/etc/vulkan", "/etc/glvnd", "/etc/nvidia"),
)
DEVICES = ("nvidia*", "dri", "kfd", "dxg", "accel")
HIDDEN_NAMES = ("HOME", "TMPDIR", "TEMP", "TMP", "PWD", "SHELL", "USER", "LOGNAME")

Level = Literal["off", "user", "bwrap"]


@dataclass(frozen=True, slots=True)
class EngineUser:
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class SandboxPaths:
    """Folders and files of an engine.

    `package` is `darkroom`, of which a checkout has links to the rooms at its root. `hidden` are secrets of the front
    that may lie below a readable folder.
    """

    package: Path
    home: Path
    input: Path
    readable: tuple[Path, ...]
    writable: tuple[Path, ...]
    hidden: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Sandbox of one engine. `user` None: the front's own, which only `bwrap` allows."""

    level: Level
    user: EngineUser | None
    places: SandboxPaths
    has_disabled_user_namespaces: bool = True
    dev: Path = field(default=Path("/dev"))

    @property
    def has_namespaces(self) -> bool:
        return self.level == "bwrap"

    def program(self, program: Sequence[str], status_fd: int | None = None) -> list[str]:
        """Return the command that runs `program` in the sandbox. `status_fd` receives its process id outside."""
        as_user = [] if self.user is None else self._change_of_user(self.user)
        if not self.has_namespaces:
            return [*as_user, *program]
        status = [] if status_fd is None else ["--json-status-fd", str(status_fd)]
        return ["bwrap", *self._namespaces(), *self._mounts(), *status, "--", *as_user, *program]

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables inside, where the front's home and temporary folders are not."""
        kept = {name: value for name, value in environment.items() if name not in HIDDEN_NAMES}
        kept = {name: value for name, value in kept.items() if not name.startswith("XDG_")}
        home = "/tmp" if self.has_namespaces else str(self.places.home)  # noqa: S108 - its own
        return {**kept, "HOME": home, "TMPDIR": "/tmp", "PYTHONNOUSERSITE": "1"}  # noqa: S108

    def _change_of_user(self, user: EngineUser) -> list[str]:
        groups = sorted({group for path in self._devices() if (group := _group_of(path)) not in (None, 0)})
        return [
            "setpriv",
            *("--reuid", str(user.uid), "--regid", str(user.gid)),
            *(["--groups", ",".join(map(str, groups))] if groups else ["--clear-groups"]),
            *("--no-new-privs", "--inh-caps=-all", "--bounding-set=-all", "--pdeathsig", "KILL"),
            "--",
        ]

    def _namespaces(self) -> list[str]:
        common = ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
        common += ["--as-pid-1", "--die-with-parent", "--new-session"]
        if self.user is not None:
            return common
        nested = ["--disable-userns"] if self.has_disabled_user_namespaces else []
        return ["--unshare-user", *nested, "--cap-drop", "ALL", *common]

    def _mounts(self) -> list[str]:
        """Return the mounts; later ones cover earlier ones."""
        mounts = [*_ro_bind("/usr"), "--proc", "/proc", "--dev", "/dev"]
        mounts += ["--size", str(TMP_BYTES), "--perms", "1777", "--tmpfs", "/tmp"]  # noqa: S108
        mounts += ["--size", str(SHARED_MEMORY_BYTES), "--perms", "1777", "--tmpfs", "/dev/shm"]  # noqa: S108
        for folder in SYSTEM_FOLDERS:
            link = Path(folder)
            mounts += ["--symlink", os.readlink(link), folder] if link.is_symlink() else _ro_bind(folder)
        for name in (*SYSTEM_FILES, *DRIVER_FOLDERS):
            mounts += _ro_bind(name)
        for device in self._devices():
            mounts += ["--dev-bind-try", str(device), str(device)]
        shown = [
            *interpreter_folders(),
            *_with_targets((self.places.package, *self.places.readable, self.places.input)),
        ]
        mounts += _parents([*shown, *self.places.writable])
        for path in shown:
            mounts += _ro_bind(str(path))
        for path in self.places.writable:
            mounts += ["--bind", str(path), str(path)]
        for path in _below(self.places.hidden, [*shown, *self.places.writable]):
            mounts += ["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]
        return [*mounts, "--remount-ro", "/", "--remount-ro", "/dev", "--chdir", str(self.places.package)]

    def _devices(self) -> list[Path]:
        return sorted(path for pattern in DEVICES for path in self.dev.glob(pattern))


def interpreter_folders() -> list[Path]:
    """Return the folders of this interpreter and of its packages."""
    import_path = [Path(entry) for entry in sys.path if entry.endswith(("site-packages", "dist-packages"))]
    named = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent, *import_path]
    named += [Path(site.getusersitepackages())] if site.ENABLE_USER_SITE else []
    return [path for path in dict.fromkeys(named) if not path.is_relative_to("/usr") and path.is_dir()]


def _parents(paths: Iterable[Path]) -> list[str]:
    """Return the folders above, which bubblewrap would create for their owner alone."""
    above = {parent for path in paths for parent in path.parents if parent != parent.parent}
    return [part for folder in sorted(above) for part in ("--perms", "0755", "--dir", str(folder))]


def _ro_bind(path: str) -> list[str]:
    return ["--ro-bind-try", path, path]


def _with_targets(paths: Iterable[Path]) -> list[Path]:
    """Return the paths, and the targets of links among them and right below them."""
    found: dict[Path, None] = {}
    for path in paths:
        found[path] = None
        below = sorted(path.iterdir()) if path.is_dir() else []
        for link in (path, *below):
            if link.is_symlink():
                found[link.resolve()] = None
    return list(found)


def _below(hidden: Iterable[Path], shown: Sequence[Path]) -> list[Path]:
    return [path for path in hidden if path.exists() and any(path.is_relative_to(folder) for folder in shown)]


def _group_of(path: Path) -> int | None:
    try:
        return path.stat().st_gid
    except OSError:
        return None
