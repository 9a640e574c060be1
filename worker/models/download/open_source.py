"""SourceOpener: the clients, credentials and address guards with which model files are read from their sources.

Sources of the operator's manifest may name private hosts; a redirect to another private host is refused all the same.
Sources that a request names go through the guard of requests, without any of the operator's tokens: those would let
whoever may submit a workflow read the operator's private and gated repositories.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from darkroom.worker.guard.plain_responses import plain_body, plain_client
from darkroom.worker.guard.safe_address import AddressGuard
from darkroom.worker.json.values import object_at
from darkroom.worker.models.download.bucket_level import BucketLevel
from darkroom.worker.models.download.credentials import BearerToken, Credentials
from darkroom.worker.models.download.http_remote import Explain, HttpRemote, no_explanation
from darkroom.worker.models.download.other_remotes import BucketRemote, FileRemote
from darkroom.worker.models.download.remote import Remote
from darkroom.worker.models.errors import DownloadBroke, SourceFailed, SourceMissing, SourceRefused, SourceUnreachable
from darkroom.worker.models.sources import BucketSource, CivitaiSource, FileSource, HubSource, Source, WebSource
from darkroom.worker.s3.stores import S3Stores, StoreFailed
from darkroom.worker.s3.targets import S3Target, choose_target
from darkroom.worker.settings.environment import CIVITAI_ENDPOINT, HUB_ENDPOINT, HubAccess
from darkroom.worker.settings.outputs import S3Config

CONNECT_SECONDS = 10.0
OPERATORS_ONLY = "the worker uses its token for files of the operator's manifest alone (MODELS_MANIFEST)"


@dataclass(frozen=True, slots=True)
class SourceAccess:
    """Places of sources and access to them. `operators_hosts` are private hosts that the manifest names."""

    hub: HubAccess = HubAccess(HUB_ENDPOINT)
    civitai: HubAccess = HubAccess(CIVITAI_ENDPOINT)
    tokens: tuple[BearerToken, ...] = ()
    s3: S3Config = field(default_factory=S3Config)
    private_hosts: tuple[str, ...] = ()
    operators_hosts: tuple[str, ...] = ()
    has_proxy: bool = False
    timeout_seconds: float = 30.0
    level: BucketLevel | None = None


class SourceOpener:
    """Owner of the HTTP clients of model downloads. Use `close()` at the end."""

    def __init__(self, access: SourceAccess) -> None:
        self._access = access
        own = [_host(access.hub.endpoint), _host(access.civitai.endpoint), *access.operators_hosts]
        timeout = httpx.Timeout(access.timeout_seconds, connect=min(CONNECT_SECONDS, access.timeout_seconds), pool=None)
        headers = {"User-Agent": "darkroom"}
        own_guard = AddressGuard([*access.private_hosts, *own])
        self._operators = (
            plain_client(timeout=timeout, headers=headers)  # a proxy resolves the names: nothing can be pinned here
            if access.has_proxy
            else plain_client(transport=own_guard.transport(), trust_env=False, timeout=timeout, headers=headers)
        )
        sites = AddressGuard([*access.private_hosts, _host(access.hub.endpoint), _host(access.civitai.endpoint)])
        self._sites = (  # the hub and Civitai, as a request names files there
            self._operators
            if access.has_proxy
            else plain_client(transport=sites.transport(), trust_env=False, timeout=timeout, headers=headers)
        )
        guard = AddressGuard(access.private_hosts)
        self._requests = plain_client(transport=guard.transport(), trust_env=False, timeout=timeout, headers=headers)
        self._stores = S3Stores(own_guard)
        public = tuple(BearerToken(site.endpoint, site.token) for site in (access.hub, access.civitai))
        self._bearers = Credentials((*public, *access.tokens))

    async def close(self) -> None:
        await self._operators.aclose()
        await self._requests.aclose()
        await self._sites.aclose()
        await self._stores.close()

    @property
    def level(self) -> BucketLevel | None:
        """The bucket that workers fill for each other, if there is one."""
        return self._access.level

    async def store(self, path: Path, source: BucketSource) -> bool:
        """Store a file in a bucket unless it is there. Return True if it was stored. Raises SourceFailed, OSError."""
        target = self._target_of(source)
        try:
            async with self._stores.read(target, source.key, (0, 1)):
                return False
        except StoreFailed as failed:
            if failed.status != 404:
                raise DownloadBroke(f"{source}: {failed.reason}") from None
        try:
            await self._stores.write(target, path, source.key, "application/octet-stream")
        except StoreFailed as failed:
            raise DownloadBroke(f"{source}: {failed.reason}") from None
        return True

    async def open(self, source: Source, *, is_operators: bool = True) -> Remote:
        """Return the file at a source. Raises SourceFailed where it is known without a request that it cannot be read.

        Unless `is_operators`, a request named the source: only the hub, Civitai and public addresses are read for it,
        without the operator's tokens.
        """
        match source:
            case HubSource():
                return self._hub(source, is_operators=is_operators)
            case CivitaiSource():
                return await self._civitai(source, is_operators=is_operators)
            case WebSource():
                client = self._operators if is_operators else self._requests
                return self._http(client, source.address, str(source), is_operators=is_operators)
            case FileSource() | BucketSource() if not is_operators:
                raise SourceRefused(f"{source}: a request may not name it; expected a public https:// address")
            case FileSource():
                return FileRemote(source.path)
            case BucketSource():
                return self._bucket(source)

    def _hub(self, source: HubSource, *, is_operators: bool) -> Remote:
        access = self._access.hub
        if access.is_offline:
            raise SourceUnreachable(f"{source}: HF_HUB_OFFLINE forbids to ask the hub")
        page = f"{access.endpoint}/{source.repository}"
        url = source.url(access.endpoint)

        def explain(status: int, headers: Mapping[str, str]) -> SourceFailed | None:
            has_token = bool(access.token.get_secret_value())
            return _hub_refusal(str(source), page, status, headers, has_token=has_token, is_operators=is_operators)

        client = self._operators if is_operators else self._sites
        return self._http(client, url, str(source), is_operators=is_operators, trusts_etag=True, explain=explain)

    async def _civitai(self, source: CivitaiSource, *, is_operators: bool) -> Remote:
        access = self._access.civitai

        def explain(status: int, headers: Mapping[str, str]) -> SourceFailed | None:
            if status in (401, 403):
                advice = "set CIVITAI_TOKEN to its API key" if is_operators else OPERATORS_ONLY
                return SourceRefused(f"{source}: Civitai asks for an account here; {advice}")
            return None

        sha256 = await self._civitai_sha256(source, is_operators=is_operators)
        client, url = (self._operators if is_operators else self._sites), source.url(access.endpoint)
        return self._http(client, url, str(source), is_operators=is_operators, sha256=sha256, explain=explain)

    async def _civitai_sha256(self, source: CivitaiSource, *, is_operators: bool) -> str | None:
        """Return the SHA-256 that Civitai publishes of the version's primary file, or None."""
        url = f"{self._access.civitai.endpoint.rstrip('/')}/api/v1/model-versions/{source.version}"
        headers = self._bearers.headers_for(url) if is_operators else {}
        client = self._operators if is_operators else self._sites
        try:
            async with client.stream("GET", url, headers=headers) as response:
                if response.status_code != 200:
                    return None
                found = httpx.Response(200, content=await plain_body(response)).json()
        except (httpx.HTTPError, ValueError):
            return None
        files = found.get("files") if isinstance(found, Mapping) else None
        listed = [item for item in files if isinstance(item, Mapping)] if isinstance(files, list) else []
        primary = next((item for item in listed if item.get("primary")), listed[0] if len(listed) == 1 else {})
        sha256 = str(object_at(primary, "hashes").get("SHA256") or "").lower()
        return sha256 if len(sha256) == 64 else None

    def _http(
        self,
        client: httpx.AsyncClient,
        url: str,
        shown: str,
        *,
        is_operators: bool,
        sha256: str | None = None,
        trusts_etag: bool = False,
        explain: Explain = no_explanation,
    ) -> Remote:
        return HttpRemote(
            client,
            url,
            shown,
            self._bearers if is_operators else Credentials(),
            reach_seconds=self._access.timeout_seconds,
            sha256=sha256,
            trusts_etag=trusts_etag,
            explain=explain,
        )

    def _bucket(self, source: BucketSource) -> Remote:
        return BucketRemote(self._stores, self._target_of(source), source.key)

    def _target_of(self, source: BucketSource) -> S3Target:
        target = choose_target({"bucket_name": source.bucket}, self._access.s3)
        if target is None:
            raise SourceRefused(f"{source}: no credentials for S3; set S3_ACCESS_KEY_ID and S3_SECRET_ACCESS_KEY")
        return target


def _hub_refusal(
    shown: str, page: str, status: int, headers: Mapping[str, str], *, has_token: bool, is_operators: bool
) -> SourceFailed | None:
    code = headers.get("x-error-code", "")
    if not is_operators and (code == "GatedRepo" or status in (401, 403)):
        return SourceRefused(f"{shown}: it is private, gated or absent; {OPERATORS_ONLY}")
    if code == "GatedRepo" or status == 403:
        advice = f"accept its licence at {page}"
        return SourceRefused(f"{shown}: a gated repository; {advice}{'' if has_token else ' and set HF_TOKEN'}")
    if code in ("EntryNotFound", "RevisionNotFound") or status == 404:
        what = "revision" if code == "RevisionNotFound" else "file"
        return SourceMissing(f"{shown}: the repository has no such {what}")
    if status == 401:
        why = (
            "HF_TOKEN was refused, or may not read it" if has_token else "it is private, gated or absent; set HF_TOKEN"
        )
        return SourceRefused(f"{shown}: the hub asks for a token: {why}")
    if 300 <= status < 400:
        return DownloadBroke(f"{shown}: the hub redirects to nowhere")
    return None


def hosts_of(sources: Iterable[Source]) -> tuple[str, ...]:
    """Return the hosts of web addresses among sources."""
    return tuple(dict.fromkeys(_host(source.address) for source in sources if isinstance(source, WebSource)))


def _host(url: str) -> str:
    return urlsplit(url).hostname or ""
