"""Preparation and trial of the engine's sandbox at the start of the front.

The trial runs an interpreter in the very sandbox that engines get and checks its access to their folders. A sandbox
that cannot work here stops the start with a message, and one that isolates nothing is never used.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace

import structlog

from darkroom.worker.engines.client.files import UPLOAD_FOLDER
from darkroom.worker.engines.sandbox import EngineUser, Level, Sandbox
from darkroom.worker.errors import EngineStartFailed

TRIAL_SECONDS = 30.0
UNLISTED = 0o711  # its files are named by the hash of their content: only a job with a file has its name
TRIAL = """
import json, os, sys
asked = json.loads(sys.argv[1])
unreadable = [path for path in asked["readable"] if os.path.exists(path) and not os.access(path, os.R_OK | os.X_OK)]
unreadable += [path for path in [*asked["project"], sys.executable] if not os.access(path, os.R_OK | os.X_OK)]
unreadable += [path for path in asked["writable"] if not os.access(path, os.W_OK | os.X_OK)]
shown = [path for path in asked["hidden"] if os.access(path, os.R_OK) and not os.path.samefile(path, os.devnull)]
shown = [path for path in shown if not os.path.isdir(path) or os.listdir(path)]
print(json.dumps({"unreadable": unreadable, "shown": shown}))
"""
UNKNOWN_OPTION = "--disable-userns"

log = structlog.get_logger("engines")


def find_user(level: Level, name: str) -> EngineUser | None:
    """Return the user that engines run as; None: the front's own. Raises EngineStartFailed where there is none.

    `name` is a user's name, a user id, or `UID:GID`; a number needs no entry in /etc/passwd.
    """
    if level == "off":
        return None
    if os.geteuid() != 0:
        if level == "user":
            raise EngineStartFailed(f"ENGINE_SANDBOX: `user` needs a front that runs as root; got uid {os.geteuid()}")
        return None
    user = _user_named(name)
    if user.uid == 0:
        raise EngineStartFailed("ENGINE_USER: is root; got uid 0, expected a user for engines alone")
    return user


def prepare(sandbox: Sandbox) -> None:
    """Make the folders that the engine writes to, and give them to its user. Blocking. Raises EngineStartFailed."""
    try:
        sandbox.places.input.mkdir(parents=True, exist_ok=True)
        if sandbox.user is not None:
            cache = sandbox.places.input / UPLOAD_FOLDER
            cache.mkdir(exist_ok=True)
            cache.chmod(UNLISTED)
        for path in sandbox.places.writable:
            path.mkdir(parents=True, exist_ok=True)
            if sandbox.user is not None:
                os.chown(path, sandbox.user.uid, sandbox.user.gid, follow_symlinks=False)
        if sandbox.user is not None and not sandbox.has_namespaces:
            shutil.rmtree(sandbox.places.home, ignore_errors=True)
            sandbox.places.home.mkdir(mode=0o700)
            os.chown(sandbox.places.home, sandbox.user.uid, sandbox.user.gid, follow_symlinks=False)
    except OSError as error:
        reason = error.strerror or error
        raise EngineStartFailed(f"ENGINE_SANDBOX: folder cannot be prepared; got {reason}: {error.filename}") from None


def try_sandbox(sandbox: Sandbox, environment: Mapping[str, str]) -> Sandbox:
    """Return the sandbox as it works here, after a trial. Blocking. Raises EngineStartFailed with what is missing."""
    needed = [*(["bwrap"] if sandbox.has_namespaces else []), *(["setpriv"] if sandbox.user is not None else [])]
    missing = [name for name in needed if shutil.which(name) is None]
    if missing:
        packages = {"bwrap": "bubblewrap", "setpriv": "util-linux"}
        names = ", ".join(f"{name} (package {packages[name]})" for name in missing)
        raise EngineStartFailed(f"ENGINE_SANDBOX: {sandbox.level} needs programs that are not here; expected {names}")
    done = _run_trial(sandbox, environment)
    if done.returncode != 0 and UNKNOWN_OPTION in done.stderr:  # bubblewrap before 0.8
        sandbox = replace(sandbox, has_disabled_user_namespaces=False)
        done = _run_trial(sandbox, environment)
    if done.returncode != 0:
        words = " | ".join(done.stderr.strip().splitlines()[-3:])
        raise EngineStartFailed(
            f"ENGINE_SANDBOX: {sandbox.level} cannot be set up here; got exit code {done.returncode}: {words} "
            "(docs/security.md#sandbox lists the requirements of each level)"
        )
    found = json.loads(done.stdout)
    if found["unreadable"]:
        raise EngineStartFailed(
            f"ENGINE_SANDBOX: the engine's user cannot use {', '.join(found['unreadable'])}; "
            "expected folders that it may read, and output and temporary folders that it may write"
        )
    for path in found["shown"]:
        log.warning("secret file readable in the engine's sandbox", path=path, level=sandbox.level)
    return sandbox


def _run_trial(sandbox: Sandbox, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    places = sandbox.places
    asked = {
        "readable": [str(path) for path in (*places.readable, places.input) if path.is_dir()],
        "project": [str(places.package / "engine")],
        "writable": [str(path) for path in places.writable],
        "hidden": [str(path) for path in places.hidden if path.exists()],
    }
    program = [sys.executable, "-I", "-S", "-c", TRIAL, json.dumps(asked)]
    try:
        return subprocess.run(
            sandbox.program(program),
            env=sandbox.environment(environment),
            cwd=places.package,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TRIAL_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EngineStartFailed(f"ENGINE_SANDBOX: {sandbox.level} cannot be set up here; got {error}") from None


def _user_named(name: str) -> EngineUser:
    uid, _, gid = name.partition(":")
    if uid.isdecimal() and (gid.isdecimal() or not gid):
        return EngineUser(int(uid), int(gid or uid))
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise EngineStartFailed(
            f"ENGINE_USER: no such user; got {name!r}, expected a name of /etc/passwd, UID or UID:GID"
        ) from None
    return EngineUser(entry.pw_uid, entry.pw_gid)


class StatusPipe:
    """Pipe on which bubblewrap reports the process id of its child outside the sandbox."""

    def __init__(self) -> None:
        read_end, self.write_end = os.pipe()
        self._report = open(read_end)  # noqa: SIM115 - closed by `close`

    def child_pid(self) -> int | None:
        """Wait for the report. Blocking. None where the program ended before it."""
        os.close(self.write_end)
        for line in self._report:
            with contextlib.suppress(ValueError):
                pid = json.loads(line).get("child-pid")
                if isinstance(pid, int):
                    return pid
        return None

    def close(self) -> None:
        """Close the pipe after the program's end: it would die of a closed pipe at its last report."""
        self._report.close()
