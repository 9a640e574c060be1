"""ModelLibrary: the manifest, its lock and the downloader of one models folder, built from the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.models.download.bucket_level import parse_level
from darkroom.worker.models.download.credentials import BearerToken
from darkroom.worker.models.download.downloader import DownloadLimits, MakeRoom, ModelDownloader, keep_all
from darkroom.worker.models.download.open_source import SourceAccess, SourceOpener, hosts_of
from darkroom.worker.models.errors import ManifestInvalid
from darkroom.worker.models.lock import lock_path_of
from darkroom.worker.models.manifest import Manifest, load_manifest
from darkroom.worker.settings.environment import civitai_access, has_proxy, hub_access
from darkroom.worker.settings.models import parse_tokens
from darkroom.worker.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class ModelLibrary:
    """The model files that a worker may have. `directory` is `models/` of the base directory.

    `read_access` reads tokens and proxies from the environment when a download begins: the hub's library, which knows
    where its login lies, takes half a second to import.
    """

    directory: Path
    manifest: Manifest
    manifest_path: Path | None
    lock_path: Path
    read_access: Callable[[], SourceAccess]
    limits: DownloadLimits

    def downloader(self, make_room: MakeRoom = keep_all) -> ModelDownloader:
        """Return a new downloader, which its owner closes; on a running event loop. Raises SettingsInvalid."""
        opener = SourceOpener(self.read_access())
        return ModelDownloader(self.directory, opener, self.limits, self.lock_path, make_room=make_room)


def build_library(settings: Settings) -> ModelLibrary:
    """Return the library that the settings describe. Raises SettingsInvalid for a manifest that does not parse."""
    base, models = settings.folders.base.absolute(), settings.models
    path = models.manifest_path(base)
    try:
        manifest = load_manifest(path)
    except ManifestInvalid as error:
        raise SettingsInvalid(f"MODELS_MANIFEST: {error}") from None
    return ModelLibrary(
        directory=base / "models",
        manifest=manifest,
        manifest_path=path,
        lock_path=lock_path_of(path, base),
        read_access=lambda: _read_access(settings, manifest),
        limits=DownloadLimits(
            bytes_per_second=models.bytes_per_second,
            min_free_bytes=settings.queue.min_free_disk_bytes,
            max_request_bytes=models.max_named_bytes,
        ),
    )


def _read_access(settings: Settings, manifest: Manifest) -> SourceAccess:
    asked = [entry for name, entry in manifest.entries.items() if name in manifest.asked_ids]
    tokens = parse_tokens(settings.models.tokens.get_secret_value())
    return SourceAccess(
        hub=hub_access(),
        civitai=civitai_access(),
        tokens=tuple(BearerToken(prefix, token) for prefix, token in tokens),
        s3=settings.s3,
        private_hosts=settings.network.private_hosts,
        operators_hosts=hosts_of(source for entry in asked for source in entry.sources),
        has_proxy=has_proxy(),
        level=parse_level(settings.models.s3_level),
    )
