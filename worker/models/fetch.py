"""Download of known models from the Hugging Face hub.

A download is resumed after an interruption, stays in `models/.downloads` until its SHA-256 is the expected one, and is
then moved into place atomically; the checksum stays beside it for `verify`. Whether the hub is reachable is decided
within five seconds. The hub library reads its own variables (HF_ENDPOINT, HF_TOKEN, HF_HUB_OFFLINE); HF_TOKEN_FILE
names a file with the token.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from worker.guard.plain_responses import IDENTITY, check_is_plain
from worker.models.errors import DownloadBroke, HubUnreachable, ModelBroken
from worker.models.files import checksum_path, find_file_problem, sha256_of
from worker.models.known import KnownModel
from worker.settings.environment import hub_token

Answer = TypeVar("Answer")

REACH_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class HubFile:
    """Metadata of a file on the hub, before it is downloaded."""

    sha256: str | None
    size_bytes: int | None


def fetch_model(
    known: KnownModel, models_directory: Path, say: Callable[[str], None], *, endpoint: str | None = None
) -> Path:
    """Download a model to its folder and return its path; a file that is there already is kept as it is.

    Raises HubUnreachable, DownloadBroke, ModelBroken.
    """
    target = models_directory / known.folder / known.local_name
    if target.is_file():
        say(f"{target} is here already")
        return target
    on_hub = ask_hub(known, endpoint)
    _check_offer(known, on_hub)
    size = f" ({on_hub.size_bytes / 1e9:.2f} GB)" if on_hub.size_bytes else ""
    say(f"Downloading {known.file_name}{size} from {known.repository}")
    partial = _download(known, models_directory / ".downloads", endpoint)
    digest, expected = sha256_of(partial), known.sha256 or on_hub.sha256
    if expected is not None and digest != expected:
        partial.unlink()
        raise ModelBroken(
            f"{known.file_name}: wrong content; got SHA-256 {digest}, expected {expected}; it was removed"
        )
    problem = find_file_problem(partial)
    if problem:
        partial.unlink()
        raise ModelBroken(f"{known.file_name} {problem}; it was removed")
    target.parent.mkdir(parents=True, exist_ok=True)
    checksum_path(target).write_text(f"{digest}  {target.name}\n")
    os.replace(partial, target)
    say(f"{target} is complete and verified")
    return target


def _check_offer(known: KnownModel, on_hub: HubFile) -> None:
    """Refuse another file under a known name before gigabytes of it are downloaded. Raises ModelBroken."""
    for what, offered, expected in (
        ("SHA-256", on_hub.sha256, known.sha256),
        ("size in bytes", on_hub.size_bytes, known.size_bytes),
    ):
        if offered is not None and expected is not None and offered != expected:
            raise ModelBroken(f"{known.file_name}: another file on the hub; got {what} {offered}, expected {expected}")


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
