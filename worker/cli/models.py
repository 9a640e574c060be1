"""Commands `darkroom models`: fetch, list, verify, lock and prune model files."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import structlog
import typer

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.models.catalogue import Group, catalogue, matching
from darkroom.worker.models.download.part_file import part_progress
from darkroom.worker.models.entry import ModelEntry
from darkroom.worker.models.errors import ManifestInvalid, ModelBroken, ModelsError
from darkroom.worker.models.files import BUILT_IN_FOLDER, find_problem, list_models, sha256_of
from darkroom.worker.models.import_manifest import read_foreign_file, write_tables
from darkroom.worker.models.layouts import LayoutsUnread, find_unknown_layouts
from darkroom.worker.models.lock import LockedFile, add_to_lock, read_lock, with_locked
from darkroom.worker.models.manifest import built_in_manifest, parse_manifest
from darkroom.worker.models.prune import find_surplus
from darkroom.worker.settings.environment import load_settings

if TYPE_CHECKING:
    from darkroom.worker.models.download.downloader import DownloadProgress
    from darkroom.worker.models.library import ModelLibrary

commands = typer.Typer(no_args_is_help=True)
NAMES_HELP = "names that `known` lists; none: all of the manifest"
BaseDirectory = Annotated[Path | None, typer.Option(help="BASE_DIRECTORY")]
ManifestPath = Annotated[Path | None, typer.Option("--manifest", help="MODELS_MANIFEST")]
SHOWN_SECONDS = 5.0  # between two lines of a download's progress


def _known_names(incomplete: str) -> list[str]:
    """Return the names of known models that begin so, for the shell's completion."""
    known = built_in_manifest()
    return [name for name in (*known.sets, *known.entries) if name.startswith(incomplete)]


@commands.callback()
def models() -> None:
    """Fetch, list, verify, lock and prune model files."""
    # What the downloader logs is printed as progress, or as the command's error.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))


@commands.command("fetch")
def fetch_command(
    names: Annotated[list[str] | None, typer.Argument(help=NAMES_HELP, autocompletion=_known_names)] = None,
    base_directory: BaseDirectory = None,
    manifest: ManifestPath = None,
) -> None:
    """Download models, each of their files that is not there.

    Exit code 2: unknown name or broken manifest; 3: a source is out of reach; 4: a file is broken; 5: it broke off;
    6: access refused; 7: not at its source; 8: the disk is full.
    """
    library = _library(base_directory, manifest)
    try:
        entries = [entry for name in names for entry in library.manifest.named(name)] if names else _required(library)
        asyncio.run(_fetch(library, entries))
    except ModelsError as error:
        _fail(error)


@commands.command("known")
def known_command(
    words: Annotated[list[str] | None, typer.Argument(help="only models whose name, family or label has these")] = None,
    has_files: Annotated[bool, typer.Option("--all", help="single files of the models too")] = False,
    card: Annotated[str, typer.Option(help="a card to compare with, such as 'RTX 4090'; else this machine's")] = "",
    vram_gb: Annotated[float | None, typer.Option("--vram-gb", min=0.1, help="memory of such a card, in GiB")] = None,
    is_json: Annotated[bool, typer.Option("--json", help="print JSON, one object a line")] = False,
    base_directory: BaseDirectory = None,
    manifest: ManifestPath = None,
) -> None:
    """List the models that `fetch` knows: what runs, size, licence, whether it fits this card and is here.

    FITS is `yes`, `streamed` (from RAM, layer by layer) or `no`, estimated from the sizes of the files. `~` is about a
    size, `+` one without some of the files.
    """
    from darkroom.worker.cli import known_models  # NVML, which the other commands need not load

    library = _library(base_directory, manifest)
    try:
        room = known_models.room_of(card, vram_gb)
    except known_models.UnknownCard as error:
        typer.echo(f"models known: {error}", err=True)
        raise typer.Exit(2) from None
    there = {model.name for model in list_models(library.directory)}
    found = matching(catalogue(library.manifest, there, room), " ".join(words or ()))
    shown = [model for model in found if has_files or words or is_json or model.group is not Group.FILES]
    if is_json:
        for model in shown:
            typer.echo(known_models.known_json(model))
        return
    for line in known_models.known_lines(shown, room, known_models.terminal_width()):
        typer.echo(line)
    if not shown:
        typer.echo(f"models known: none has {' '.join(words or ())!r} in its name, family or label", err=True)
    elif len(shown) < len(found):
        typer.echo(f"{len(found) - len(shown)} single files more: darkroom models known --all", err=True)


@commands.command("list")
def list_command(base_directory: BaseDirectory = None, manifest: ManifestPath = None) -> None:
    """List every model file below models/ with its size, those that the manifest lacks, and the built-in ones."""
    library = _library(base_directory, manifest)
    models = list_models(library.directory)
    for model in models:
        typer.echo(f"{model.size_bytes / 1e6:10.1f} MB  {model.name}")
    for entry in library.manifest.required():
        if not entry.path_below(library.directory).is_file():
            typer.echo(f"{_state(library, entry):>13}  {entry.place}")
    for model in list_models(BUILT_IN_FOLDER):
        typer.echo(f"{model.size_bytes / 1e6:10.1f} MB  {model.name}  (built in)")
    if not models:
        typer.echo(f"No model files below {library.directory}", err=True)


@commands.command("plan")
def plan_command(
    names: Annotated[list[str] | None, typer.Argument(help=NAMES_HELP, autocompletion=_known_names)] = None,
    base_directory: BaseDirectory = None,
    manifest: ManifestPath = None,
) -> None:
    """Show what `fetch` would download, from where, and how many bytes. Nothing is asked for."""
    library = _library(base_directory, manifest)
    try:
        entries = [entry for name in names for entry in library.manifest.named(name)] if names else _required(library)
        locked = read_lock(library.lock_path)
    except ModelsError as error:
        _fail(error)
        return
    missing = [with_locked(entry, locked) for entry in entries if not entry.path_below(library.directory).is_file()]
    for entry in missing:
        size = f"{entry.size_bytes / 1e6:10.1f} MB" if entry.size_bytes else f"{'unknown':>13}"
        typer.echo(f"{size}  {entry.place} from {', '.join(map(str, entry.sources))}")
    unknown = sum(entry.size_bytes is None for entry in missing)
    more = f", and {unknown} of unknown size" if unknown else ""
    total = sum(entry.size_bytes or 0 for entry in missing)
    typer.echo(f"{len(missing)} of {len(entries)} to fetch: {total / 1e6:.1f} MB{more}", err=True)


@commands.command("verify")
def verify_command(base_directory: BaseDirectory = None, manifest: ManifestPath = None) -> None:
    """Check every model file: structure, known checksum, and whether the engine knows its layout.

    Exit code 4: one is broken. A file of an unknown layout may still be one of a node pack.
    """
    library = _library(base_directory, manifest)
    num_broken = 0
    models = list_models(library.directory)
    expected = _expected_digests(library)
    problems = {model.name: find_problem(model.path, expected.get(model.name)) for model in models}
    try:
        unknown = find_unknown_layouts([model for model in models if problems[model.name] is None])
    except LayoutsUnread as error:
        unknown = {}
        typer.echo(f"models verify: layouts of the files are not checked; {error}", err=True)
    for model in models:
        problem = problems[model.name]
        num_broken += problem is not None
        if problem is None and model.name in unknown:
            typer.echo(f"{'unknown':8}{model.name}: of no known family; {unknown[model.name]}")
        else:
            typer.echo(f"{'BROKEN' if problem else 'good':8}{model.name}{f': it {problem}' if problem else ''}")
    if models:
        typer.echo(f"{len(models)} checked, {num_broken} broken", err=True)
    else:
        typer.echo(f"No model files below {library.directory}", err=True)
    if num_broken:
        raise typer.Exit(ModelBroken.exit_code)


@commands.command("lock")
def lock_command(base_directory: BaseDirectory = None, manifest: ManifestPath = None) -> None:
    """Write size and SHA-256 of the manifest's files that are here to the lock file beside the manifest."""
    library = _library(base_directory, manifest)
    try:
        locked = read_lock(library.lock_path)
        new = {
            entry.place: LockedFile(sha256_of(path), path.stat().st_size)
            for entry in library.manifest.entries.values()
            if entry.place not in locked and (path := entry.path_below(library.directory)).is_file()
        }
        add_to_lock(library.lock_path, new)
    except ModelsError as error:
        _fail(error)
        return
    typer.echo(f"{library.lock_path}: {len(new)} added, {len(locked) + len(new)} files")


@commands.command("import")
def import_command(
    file: Annotated[
        Path, typer.Argument(help="comfy-build.yaml, comfy-lock.yaml, snapshot.json, .cpack.zip or manifest.yml")
    ],
    base_directory: BaseDirectory = None,
) -> None:
    """Write models.toml and packs.toml of the base directory from another tool's manifest."""
    base = _library(base_directory, None).directory.parent
    try:
        found = read_foreign_file(file)
        parse_manifest(found.models, file.name)
        for name, tables in (("models.toml", found.models), ("packs.toml", found.packs)):
            if tables:
                write_tables(base / name, tables)
                typer.echo(f"{base / name}: {len(tables)} tables")
    except ModelsError as error:
        _fail(error)
        return
    for line in found.left_out:
        typer.echo(f"left out: {line}", err=True)


@commands.command("prune")
def prune_command(
    base_directory: BaseDirectory = None,
    manifest: ManifestPath = None,
    yes: Annotated[bool, typer.Option("--yes", help="remove them")] = False,
) -> None:
    """List downloaded files that the manifest does not ask for and parts of broken downloads; `--yes` removes them.

    Files that were put there by other means are kept.
    """
    library = _library(base_directory, manifest)
    surplus = find_surplus(library.directory, {entry.place for entry in library.manifest.required()}, time.time())
    for item in surplus:
        typer.echo(f"{item.size_bytes / 1e6:10.1f} MB  {item.name}")
        if yes:
            item.remove()
    total = sum(item.size_bytes for item in surplus)
    typer.echo(f"{len(surplus)} files, {total / 1e6:.1f} MB{' removed' if yes else '; --yes removes them'}", err=True)


async def _fetch(library: ModelLibrary, entries: Sequence[ModelEntry]) -> None:
    """Fetch all entries, as many at once as the settings allow; the others go on where one fails."""
    downloader = library.downloader()
    try:
        tasks = [_fetch_one(library, downloader.fetch, entry, number) for number, entry in enumerate(entries)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await downloader.fill_level()
    finally:
        await downloader.close()
    errors = [error for error in results if isinstance(error, BaseException)]
    for error in errors[1:]:
        typer.echo(str(error), err=True)
    if errors:
        raise errors[0]


async def _fetch_one(library: ModelLibrary, fetch: Callable[..., Any], entry: ModelEntry, number: int) -> None:
    path = entry.path_below(library.directory)
    if path.is_file():
        typer.echo(f"{path} is here already")
        return
    shown_at = [0.0]

    def show(progress: DownloadProgress) -> None:
        now = time.monotonic()
        if now - shown_at[0] >= SHOWN_SECONDS and progress.total_bytes:
            size = f"{progress.total_bytes / 1e9:.2f} GB"
            typer.echo(f"fetching {entry.name} {progress.percent:.0f} % of {size} from {progress.source}")
            shown_at[0] = now

    await fetch(entry, priority=(number,), on_progress=show)
    typer.echo(f"{path} is complete and verified")


def _required(library: ModelLibrary) -> tuple[ModelEntry, ...]:
    required = library.manifest.required()
    if not required:
        raise ManifestInvalid(
            "models fetch: no name and no manifest that asks for a file; expected a name, or models.toml"
        )
    return required


def _expected_digests(library: ModelLibrary) -> dict[str, str]:
    """Return the SHA-256 of manifest and lock by place."""
    try:
        locked = read_lock(library.lock_path)
    except ModelsError as error:
        _fail(error)
        return {}
    entries = [with_locked(entry, locked) for entry in library.manifest.entries.values()]
    return {entry.place: entry.sha256 for entry in entries if entry.sha256}


def _state(library: ModelLibrary, entry: ModelEntry) -> str:
    found = part_progress(library.directory, entry.place)
    return f"{100 * found[0] / found[1]:.0f} % fetched" if found else "missing"


def _library(base_directory: Path | None, manifest: Path | None) -> ModelLibrary:
    given: dict[str, Any] = {} if base_directory is None else {"base_directory": base_directory}
    given |= {} if manifest is None else {"models_manifest": manifest}
    from darkroom.worker.models.library import (
        build_library,  # HTTP clients and S3, which the other commands need not load
    )

    try:
        return build_library(load_settings(**given).settings)
    except SettingsInvalid as error:
        typer.echo(error.message, err=True)
        raise typer.Exit(2) from None


def _fail(error: ModelsError) -> None:
    typer.echo(str(error), err=True)
    raise typer.Exit(error.exit_code) from None
