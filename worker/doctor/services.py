"""Checks of what the worker sends to: the store, the webhook's receiver, the platform's autoscaler."""

from __future__ import annotations

import asyncio
import importlib.util
import ssl
import time
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import urlsplit

import httpx

from darkroom.host.distribution import install_command
from darkroom.worker.doctor.check import Check, failed, good, skipped, warning
from darkroom.worker.errors import WorkerError
from darkroom.worker.guard.network_errors import cause_of
from darkroom.worker.guard.plain_responses import plain_client
from darkroom.worker.guard.safe_address import AddressGuard
from darkroom.worker.s3.stores import S3Stores
from darkroom.worker.s3.targets import choose_target
from darkroom.worker.settings.outputs import S3Config, WebhookConfig
from darkroom.worker.settings.settings import Settings

SECONDS: Final = 5.0
PORTS: Final[Mapping[str, int]] = {"http": 80, "https": 443}


async def check_s3(config: S3Config, private_hosts: Sequence[str]) -> Check:
    """Check that the operator's bucket answers a listing with the operator's credentials."""
    target = choose_target(None, config)
    if target is None:
        missing = config.missing_names
        if len(missing) == 3:
            return skipped("s3", "Not configured: results stay on the worker's disk")
        return warning("s3", f"Nothing is uploaded: {' and '.join(missing)} not set", f"Set {' and '.join(missing)}")
    place = f"bucket {target.bucket_name} at {target.endpoint_url or 'AWS'}"
    stores = S3Stores(AddressGuard(private_hosts))
    try:
        async with asyncio.timeout(SECONDS):
            problem = await stores.find_problem(target)
    except TimeoutError:
        problem = f"no answer within {SECONDS:g} s"
    except WorkerError as error:
        problem = error.message
    finally:
        await stores.close()
    if problem is None:
        return good("s3", f"{place} answers")
    remedy = "Look at S3_ENDPOINT_URL, S3_REGION, the bucket's name and what the key may do (PutObject, GetObject)"
    return failed("s3", f"{place}: {problem}", remedy)


async def check_webhook(config: WebhookConfig) -> Check:
    """Check that the receiver of the operator's webhooks takes a connection. Nothing is sent to it."""
    if not config.url:
        return skipped("webhook", "WEBHOOK_URL is not set")
    problem = await find_connection_problem(config.url)
    host = urlsplit(config.url).hostname
    if problem is not None:
        return failed(
            "webhook", f"{host}: {problem}", "Look at WEBHOOK_URL, DNS and the firewall; webhooks wait on disk"
        )
    if not config.secret.get_secret_value():
        return warning("webhook", f"{host} answers; webhooks are not signed", "Set WEBHOOK_SECRET, and check it there")
    return good("webhook", f"{host} answers; webhooks are signed")


async def check_autoscaler(settings: Settings) -> Check:
    """Check that the platform's variables are whole, and that its addresses take connections."""
    if settings.platform == "plain":
        if settings.autoscaler.name == "auto" and settings.vast.container_id is not None:
            return warning(
                "autoscaler", "CONTAINER_ID without MASTER_TOKEN: nothing is reported to Vast", "Set MASTER_TOKEN"
            )
        return good("autoscaler", "Metrics alone")
    if settings.platform == "runpod":
        if importlib.util.find_spec("runpod") is None:
            return failed("autoscaler", "RunPod's package is not installed", install_command("runpod"))
        return good("autoscaler", "RunPod")
    wrong = {}
    for address in settings.vast_config().report_addresses:
        problem = await find_connection_problem(address)
        if problem is not None:
            wrong[urlsplit(address).hostname] = problem
    if wrong:
        shown = "; ".join(f"{host}: {problem}" for host, problem in wrong.items())
        return failed("autoscaler", f"Vast: {shown}", "Look at REPORT_ADDR, DNS and the firewall")
    return good("autoscaler", "Vast: the report addresses answer")


async def find_connection_problem(url: str) -> str | None:
    """Return the reason why no connection to a URL's host can be made, by TLS where the URL asks; None without one."""
    parts = urlsplit(url)
    if parts.hostname is None or parts.scheme not in PORTS:
        return "not an http:// or https:// address"
    tls = ssl.create_default_context() if parts.scheme == "https" else None
    try:
        async with asyncio.timeout(SECONDS):
            _, writer = await asyncio.open_connection(parts.hostname, parts.port or PORTS[parts.scheme], ssl=tls)
    except TimeoutError:
        return f"no answer within {SECONDS:g} s"
    except ssl.SSLError as error:
        return f"its certificate is refused: {cause_of(error)}"
    except OSError as error:
        return cause_of(error)
    writer.close()
    return None


async def clock_skews(settings: Settings) -> dict[str, float]:
    """Return the seconds by which this clock is ahead of the servers that the settings name, by their host."""
    urls = [url for url in (settings.s3.endpoint_url, settings.webhook.url) if url]
    skews = {}
    async with plain_client(timeout=SECONDS) as http:
        for url in urls:
            parts = urlsplit(url)
            try:
                reply = await http.head(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/")
                skews[str(parts.hostname)] = time.time() - parsedate_to_datetime(reply.headers["date"]).timestamp()
            except (httpx.HTTPError, KeyError, ValueError):  # another check reports that it does not answer
                continue
    return skews
