"""ModelLibrary: the manifest, its lock and the downloader of one models folder, built from the settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from worker.models.download.credentials import BearerToken
from worker.models.download.downloader import DownloadLimits, ModelDownloader
from worker.models.download.open_source import SourceAccess, SourceOpener, hosts_of
from worker.models.download.transfer import TransferLimits
from worker.models.lock import lock_path_of
from worker.models.manifest import Manifest, load_manifest
from worker.settings.environment import civitai_access, has_proxy, hub_access
from worker.settings.models import parse_tokens
from worker.settings.settings import Settings


@dataclass(frozen=True, slots=True)
class ModelLibrary:
    """The model files that a worker may have. `directory` is `models/` of the base directory."""

    directory: Path
    manifest: Manifest
    lock_path: Path
    access: SourceAccess
    limits: DownloadLimits

    def downloader(self) -> ModelDownloader:
        """Return a new downloader, which its owner closes; on a running event loop."""
        return ModelDownloader(self.directory, SourceOpener(self.access), self.limits, self.lock_path)


def build_library(settings: Settings) -> ModelLibrary:
    """Return the library that the settings describe. Raises ManifestInvalid, SettingsInvalid."""
    base, models = settings.folders.base.absolute(), settings.models
    path = models.manifest_path(base)
    manifest = load_manifest(path)
    tokens = parse_tokens(models.tokens.get_secret_value())
    asked = (
        source for name in manifest.asked_ids if name in manifest.entries for source in manifest.entries[name].sources
    )
    return ModelLibrary(
        directory=base / "models",
        manifest=manifest,
        lock_path=lock_path_of(path, base),
        access=SourceAccess(
            hub=hub_access(),
            civitai=civitai_access(),
            tokens=tuple(BearerToken(prefix, token) for prefix, token in tokens),
            s3=settings.s3,
            private_hosts=settings.network.private_hosts,
            operators_hosts=hosts_of(asked),
            has_proxy=has_proxy(),
            timeout_seconds=models.timeout_seconds,
        ),
        limits=DownloadLimits(
            num_at_once=models.num_downloads,
            bytes_per_second=models.bytes_per_second,
            min_free_bytes=settings.queue.min_free_disk_bytes,
            transfer=TransferLimits(num_connections=models.num_connections),
        ),
    )
