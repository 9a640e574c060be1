"""A downloader with small limits, against a server of this machine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from darkroom.worker.concurrency.backoff import Backoff
from darkroom.worker.models.download.downloader import DownloadLimits, ModelDownloader, keep_all
from darkroom.worker.models.download.open_source import SourceAccess, SourceOpener
from darkroom.worker.models.download.transfer import TransferLimits
from darkroom.worker.models.entry import ModelEntry
from darkroom.worker.models.sources import parse_source
from darkroom.worker.settings.environment import HubAccess
from tests.worker.models.model_server import ModelServer

QUICK = TransferLimits(num_tries=4, backoff=Backoff(first_seconds=0.01, longest_seconds=0.02))


def entry_of(*sources: str, **fields: Any) -> ModelEntry:
    """Return an entry of the file `small.safetensors` among the checkpoints."""
    entry = ModelEntry(
        id="small",
        label="A small model",
        kind="checkpoints",
        name="small.safetensors",
        sources=tuple(parse_source(source) for source in sources),
    )
    return replace(entry, **fields)


def access_to(server: ModelServer, **fields: Any) -> SourceAccess:
    """Return access to a server of this machine as hub, as Civitai and as a web server."""
    token = SecretStr(fields.pop("token", ""))
    given: dict[str, Any] = {"timeout_seconds": 10.0, "operators_hosts": ("127.0.0.1",)}
    site = HubAccess(server.url, token)
    return SourceAccess(**{**given, "hub": site, "civitai": site, **fields})


@asynccontextmanager
async def downloader_at(
    models: Path, access: SourceAccess, make_room: Any = keep_all, **limits: Any
) -> AsyncIterator[ModelDownloader]:
    """Run a downloader into a folder; its lock file lies beside it."""
    given = DownloadLimits(**{"transfer": QUICK, **limits})
    lock = models.parent / "models.lock.toml"
    downloader = ModelDownloader(models, SourceOpener(access), given, lock, make_room=make_room)
    try:
        yield downloader
    finally:
        await downloader.close()
