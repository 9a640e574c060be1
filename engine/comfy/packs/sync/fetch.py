"""Fetching of a pack's files: from a git repository, ComfyUI's registry, or a folder of an earlier fetch."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from darkroom.engine.comfy.packs.sync.errors import PackNotFetched
from darkroom.engine.comfy.packs.sync.manifest import PackEntry
from darkroom.engine.comfy.packs.sync.tree import read_mark

REGISTRY = "https://api.comfy.org"
GIT_SECONDS = 900.0
HTTP_SECONDS = 60.0
MAX_ARCHIVE_BYTES = 2 * 1024**3
MAX_UNPACKED_BYTES = 8 * 1024**3
CHUNK_BYTES = 1024 * 1024
GIT = ("git", "-c", "core.askPass=true")  # asks nobody for a password, credential helpers excepted
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class FetchedPack:
    """Files of a pack in a folder of their own. `commit` is a git commit, or a version of the registry."""

    entry: PackEntry
    folder: Path
    commit: str


def fetch_pack(entry: PackEntry, folder: Path, *, revision: str, registry: str, store: Path | None) -> FetchedPack:
    """Put a pack's files into `folder`, which does not exist yet. Raises PackNotFetched.

    `revision` is an exact commit or version, or the manifest's. `store` holds fetched packs by name: then no network is
    used.
    """
    if store is not None:
        return _from_store(entry, folder, store, revision)
    return _from_registry(entry, folder, registry, revision) if entry.registry else _from_git(entry, folder, revision)


def _from_store(entry: PackEntry, folder: Path, store: Path, revision: str) -> FetchedPack:
    mark = read_mark(store / entry.name)
    if mark is None:
        raise PackNotFetched(f"{entry.name}: is not in {store}; expected the folder of a pack that was fetched before")
    if mark.source != entry.source or (entry.revision and revision != mark.revision):
        raise PackNotFetched(
            f"{entry.name}: {store} has {mark.source}@{mark.revision}, expected {entry.source}@{revision}"
        )
    shutil.copytree(store / entry.name, folder, symlinks=True)
    return FetchedPack(entry, folder, mark.revision)


def _from_git(entry: PackEntry, folder: Path, revision: str) -> FetchedPack:
    """Fetch one commit; where the server gives none by an abbreviated name, the whole repository."""
    folder.mkdir(parents=True)
    _git(entry, folder, ["init", "--quiet"])
    wanted = revision or "HEAD"
    single = ["fetch", "--quiet", "--depth", "1", "--", entry.url, wanted]
    if _git(entry, folder, single, is_tried=True):
        _git(entry, folder, ["checkout", "--quiet", "FETCH_HEAD"])
    else:
        everything = ["fetch", "--quiet", "--tags", "--", entry.url, "+refs/heads/*:refs/remotes/origin/*"]
        _git(entry, folder, everything)
        found = (revision, f"refs/remotes/origin/{revision}", f"refs/tags/{revision}")
        if not any(_git(entry, folder, ["checkout", "--quiet", "--detach", name], is_tried=True) for name in found):
            raise PackNotFetched(f"{entry.name}: {entry.source} has no revision {revision!r}; expected a commit or tag")
    if (folder / ".gitmodules").is_file():
        _git(entry, folder, ["submodule", "--quiet", "update", "--init", "--recursive", "--depth", "1"])
    commit = _git_output(folder, ["rev-parse", "HEAD"])
    if not _COMMIT.fullmatch(commit):
        raise PackNotFetched(f"{entry.name}: git names no commit in {entry.source}")
    for inside in (folder / ".git", *folder.rglob(".git")):
        if inside.is_dir() and not inside.is_symlink():
            shutil.rmtree(inside)
        else:
            inside.unlink(missing_ok=True)
    return FetchedPack(entry, folder, commit)


def _git(entry: PackEntry, folder: Path, arguments: Sequence[str], *, is_tried: bool = False) -> bool:
    """Run git; return True on success. Raises PackNotFetched with git's last line unless the call is a try."""
    try:
        done = subprocess.run(
            [*GIT, "-C", str(folder), *arguments], stdin=subprocess.DEVNULL,
            capture_output=True, text=True, errors="replace", timeout=GIT_SECONDS, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise PackNotFetched(f"{entry.name}: git is not installed; expected it for {entry.source}") from None
    except subprocess.TimeoutExpired:
        raise PackNotFetched(f"{entry.name}: {entry.source} took longer than {GIT_SECONDS:g} s") from None
    if done.returncode != 0 and not is_tried:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or [f"exit code {done.returncode}"]
        reason = re.sub(r"//[^/@\s]*@", "//", " ".join(lines[-2:]))
        raise PackNotFetched(f"{entry.name}: cannot be fetched from {entry.shown}: {reason[:400]}")
    return done.returncode == 0


def _git_output(folder: Path, arguments: Sequence[str]) -> str:
    command = [*GIT, "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip()


def _from_registry(entry: PackEntry, folder: Path, registry: str, revision: str) -> FetchedPack:
    query = f"?{urllib.parse.urlencode({'version': revision})}" if revision else ""
    about = f"{registry}/nodes/{urllib.parse.quote(entry.registry)}/install{query}"
    archive = folder.with_name(f"{folder.name}.zip")
    try:
        with urllib.request.urlopen(about, timeout=HTTP_SECONDS) as answer:
            data = json.loads(answer.read(MAX_ARCHIVE_BYTES))
        address, version = str(data["downloadUrl"]), str(data["version"])
        if not address.startswith(("https://", registry)):
            raise PackNotFetched(f"{entry.name}: the registry names no https:// address for {entry.shown}")
        with urllib.request.urlopen(address, timeout=HTTP_SECONDS) as answer, archive.open("wb") as file:
            _copy_limited(entry, answer, file)
        _unpack(entry, archive, folder)
    except urllib.error.HTTPError as error:
        what = "has no such pack or version" if error.code == 404 else f"replied {error.code}"
        raise PackNotFetched(f"{entry.name}: {registry} {what}; asked for {entry.shown}") from None
    except (OSError, KeyError, TypeError, ValueError, zipfile.BadZipFile) as error:
        raise PackNotFetched(f"{entry.name}: cannot be fetched from {entry.shown} at {registry}: {error}") from None
    finally:
        archive.unlink(missing_ok=True)
    return FetchedPack(entry, folder, version)


def _copy_limited(entry: PackEntry, answer: BinaryIO, file: BinaryIO) -> None:
    num_bytes = 0
    while chunk := answer.read(CHUNK_BYTES):
        num_bytes += len(chunk)
        if num_bytes > MAX_ARCHIVE_BYTES:
            raise PackNotFetched(f"{entry.name}: its archive is over {MAX_ARCHIVE_BYTES} bytes")
        file.write(chunk)


def _unpack(entry: PackEntry, archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        if sum(item.file_size for item in packed.infolist()) > MAX_UNPACKED_BYTES:
            raise PackNotFetched(f"{entry.name}: its files are over {MAX_UNPACKED_BYTES} bytes")
        packed.extractall(folder)
