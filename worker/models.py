"""Commands `darkroom models`: fetch known checkpoints from the Hugging Face hub, list the files, verify them.

A download is resumed after an interruption, stays in `models/.downloads` until its SHA-256 equals the hub's, and is
then moved into place atomically; the checksum stays beside it for `verify`. Whether the hub is reachable is decided
within five seconds. The hub library reads its own variables (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE); HF_TOKEN_FILE
names a file with the token.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeVar

import typer

from worker.guard.plain_responses import IDENTITY, check_is_plain
from worker.settings.environment import hub_token, load_settings

Answer = TypeVar("Answer")

REACH_SECONDS = 5.0
MODEL_EXTENSIONS = frozenset({".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".bin", ".gguf"})
MAX_HEADER_BYTES = 100_000_000
CHUNK_BYTES = 4 * 1024 * 1024


class ModelsError(Exception):
    """Failure of a model command; `exit_code` is its cause for scripts."""

    exit_code: ClassVar[int] = 1


class UnknownModel(ModelsError):
    exit_code = 2


class HubUnreachable(ModelsError):
    """Error without a reply from the hub within REACH_SECONDS, or at all. Nothing was downloaded."""

    exit_code = 3


class ModelBroken(ModelsError):
    """Error for a file without the expected content."""

    exit_code = 4


class DownloadBroke(ModelsError):
    """Error when the hub replied and the download did not finish; the partial file is kept and resumed."""

    exit_code = 5


@dataclass(frozen=True, slots=True)
class KnownModel:
    repository: str
    file_name: str
    folder: str


KNOWN_MODELS: dict[str, KnownModel] = {
    "sd15": KnownModel(
        "Comfy-Org/stable-diffusion-v1-5-archive", "v1-5-pruned-emaonly-fp16.safetensors", "checkpoints"
    ),
}


@dataclass(frozen=True, slots=True)
class HubFile:
    """Metadata of a file on the hub, before it is downloaded."""

    sha256: str | None
    size_bytes: int | None


@dataclass(frozen=True, slots=True)
class ModelFile:
    name: str
    path: Path
    size_bytes: int


def fetch_model(name: str, models_directory: Path, say: Callable[[str], None], *, endpoint: str | None = None) -> Path:
    """Download a known model to its folder and return its path; a file that is there already is kept as it is.

    Raises UnknownModel, HubUnreachable, DownloadBroke, ModelBroken.
    """
    known = KNOWN_MODELS.get(name)
    if known is None:
        raise UnknownModel(f"{name} is not a known model; known: {', '.join(KNOWN_MODELS)}")
    target = models_directory / known.folder / known.file_name
    if target.is_file():
        say(f"{target} is here already")
        return target
    on_hub = ask_hub(known, endpoint)
    size = f" ({on_hub.size_bytes / 1e9:.2f} GB)" if on_hub.size_bytes else ""
    say(f"Downloading {known.file_name}{size} from {known.repository}")
    partial = _download(known, models_directory / ".downloads", endpoint)
    digest = sha256_of(partial)
    if on_hub.sha256 is not None and digest != on_hub.sha256:
        partial.unlink()
        raise ModelBroken(f"{known.file_name} has SHA-256 {digest}, the hub has {on_hub.sha256}; it was removed")
    problem = find_file_problem(partial)
    if problem:
        partial.unlink()
        raise ModelBroken(f"{known.file_name} {problem}; it was removed")
    target.parent.mkdir(parents=True, exist_ok=True)
    checksum_path(target).write_text(f"{digest}  {target.name}\n")
    os.replace(partial, target)
    say(f"{target} is complete and verified")
    return target


def ask_hub(known: KnownModel, endpoint: str | None = None) -> HubFile:
    """Return the hub's metadata of a file. Raises HubUnreachable after REACH_SECONDS, regardless of the cause."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    token = hub_token()

    def ask() -> HubFile:
        _read_plain()
        url = hf_hub_url(known.repository, known.file_name, endpoint=endpoint)
        on_hub = get_hf_file_metadata(url, timeout=REACH_SECONDS, endpoint=endpoint, token=token)
        etag = (on_hub.etag or "").lower()
        is_sha256 = len(etag) == 64 and all(letter in "0123456789abcdef" for letter in etag)
        return HubFile(etag if is_sha256 else None, on_hub.size)

    try:
        return _within(REACH_SECONDS, ask)
    except TimeoutError:
        raise HubUnreachable(f"The model hub did not answer within {REACH_SECONDS:g} s") from None
    except HfHubHTTPError as error:
        raise HubUnreachable(f"The model hub did not return {known.repository}: {type(error).__name__}") from None
    except Exception as error:  # noqa: BLE001 - the hub library, whose connection errors have no common type
        raise HubUnreachable(f"The model hub cannot be reached ({type(error).__name__})") from None


def _within(seconds: float, ask: Callable[[], Answer]) -> Answer:
    """Return the result, or raise TimeoutError. The thread is left behind: a hanging name server is uninterruptible."""
    answers: list[Answer] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            answers.append(ask())
        except Exception as error:  # noqa: BLE001 - the thread; raised again by the caller
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise TimeoutError
    return answers[0]


def _download(known: KnownModel, folder: Path, endpoint: str | None) -> Path:
    from huggingface_hub import hf_hub_download

    folder.mkdir(parents=True, exist_ok=True)
    _read_plain()
    token = hub_token()
    try:
        path = hf_hub_download(known.repository, known.file_name, local_dir=folder, endpoint=endpoint, token=token)
    except Exception as error:  # noqa: BLE001 - the hub library, whose connection errors have no common type
        raise DownloadBroke(
            f"The download of {known.file_name} broke off ({type(error).__name__}); run it again to resume"
        ) from None
    return Path(path)


def _read_plain() -> None:
    """Make the hub library's client ask for identity and refuse an encoded reply, which it would decode unbounded."""
    from huggingface_hub import get_session

    session = get_session()
    session.headers.update(IDENTITY)
    hooks = session.event_hooks
    if _refuse_encoded not in hooks["response"]:
        hooks["response"].append(_refuse_encoded)
        session.event_hooks = hooks


def _refuse_encoded(response: Any) -> None:
    if response.request.method != "HEAD":
        check_is_plain(response)


def list_models(models_directory: Path) -> list[ModelFile]:
    """Return every model file below the folder, by name."""
    return sorted(_model_files(models_directory), key=lambda model: model.name)


def _model_files(models_directory: Path) -> Iterator[ModelFile]:
    for path in models_directory.rglob("*"):
        name = path.relative_to(models_directory)
        is_hidden = any(part.startswith(".") for part in name.parts)
        if path.suffix.lower() in MODEL_EXTENSIONS and not is_hidden and path.is_file():
            yield ModelFile(str(name), path, path.stat().st_size)


def find_problem(path: Path) -> str | None:
    """Return the problem of a model file: a truncated or damaged structure, or a wrong checksum. None without one."""
    problem = find_file_problem(path)
    if problem is not None:
        return problem
    recorded = checksum_path(path)
    if recorded.is_file():
        expected = recorded.read_text().split(" ", 1)[0].strip()
        found = sha256_of(path)
        if found != expected:
            return f"has SHA-256 {found}, and had {expected} when it was fetched"
    return None


def find_file_problem(path: Path) -> str | None:
    """Compare the header of a safetensors file with its length and return the problem; None for other kinds of file."""
    if path.suffix.lower() not in (".safetensors", ".sft"):
        return None
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if size_bytes < 8 or header_bytes > min(MAX_HEADER_BYTES, size_bytes - 8):
            return "is not a safetensors file, or is cut off in its header"
        try:
            header = json.loads(file.read(header_bytes))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError):
            return "is not a safetensors file: its header does not parse"
    expected_bytes = 8 + header_bytes + max(ends, default=0)
    if size_bytes != expected_bytes:
        return f"has {size_bytes} bytes, its header announces {expected_bytes}"
    return None


def checksum_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.sha256")


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


# the commands

commands = typer.Typer(no_args_is_help=True, help="Fetch, list and verify model files.")
BaseDirectory = Annotated[Path | None, typer.Option(help="BASE_DIRECTORY")]


@commands.command("fetch")
def fetch_command(
    name: Annotated[str, typer.Argument(help=f"one of: {', '.join(KNOWN_MODELS)}")],
    base_directory: BaseDirectory = None,
) -> None:
    """Download a known model. Exit code 3: the hub is out of reach; 4: the file is broken; 5: it broke off."""
    try:
        fetch_model(name, _models_directory(base_directory), typer.echo)
    except ModelsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(error.exit_code) from None


@commands.command("list")
def list_command(base_directory: BaseDirectory = None) -> None:
    """List every model file below models/, with its size."""
    folder = _models_directory(base_directory)
    models = list_models(folder)
    for model in models:
        typer.echo(f"{model.size_bytes / 1e6:10.1f} MB  {model.name}")
    if not models:
        typer.echo(f"No model files below {folder}", err=True)


@commands.command("verify")
def verify_command(base_directory: BaseDirectory = None) -> None:
    """Check every model file: its structure, and its checksum where one was recorded. Exit code 4: one is broken."""
    num_broken = 0
    for model in list_models(_models_directory(base_directory)):
        problem = find_problem(model.path)
        num_broken += problem is not None
        typer.echo(f"{'BROKEN' if problem else 'good':8}{model.name}{f': it {problem}' if problem else ''}")
    if num_broken:
        raise typer.Exit(ModelBroken.exit_code)


def _models_directory(base_directory: Path | None) -> Path:
    given: dict[str, Any] = {} if base_directory is None else {"base_directory": base_directory}
    return load_settings(**given).settings.folders.base / "models"
