"""Process of a gateway: reads the settings and runs the HTTP server until it is stopped."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import Any

import structlog
import uvicorn

from darkroom.host.heap import map_large_blocks
from darkroom.modifiers.registry import build_registry
from darkroom.worker.api.busy import busy
from darkroom.worker.api.services import RequestServices
from darkroom.worker.app.integrations import broker_of_gateway, build_producer, gateway_routers, unsigned_envelopes
from darkroom.worker.errors import SettingsInvalid, WorkerError
from darkroom.worker.gateway.app import create_gateway_app
from darkroom.worker.gateway.database import GatewayDatabase
from darkroom.worker.gateway.gateway import Gateway
from darkroom.worker.gateway.job_ledger import JobLedger
from darkroom.worker.gateway.job_records import JobRecords
from darkroom.worker.gateway.metrics import GatewayMetrics
from darkroom.worker.gateway.queue.consumer import DatabaseBroker
from darkroom.worker.gateway.queue.queue import DatabaseQueue
from darkroom.worker.gateway.request_limits import RequestLimits
from darkroom.worker.gateway.request_rates import RequestRates
from darkroom.worker.gateway.routes import GatewayServices
from darkroom.worker.gateway.workers.desk import WorkerDesk
from darkroom.worker.gateway.workers.tokens import WorkerTokens
from darkroom.worker.guard.auth import Gatekeeper
from darkroom.worker.guard.bodies import Bodies
from darkroom.worker.guard.identity.may_listen import check_may_listen
from darkroom.worker.guard.listener.certificate import Certificate
from darkroom.worker.guard.listener.connections import ConnectionTable
from darkroom.worker.guard.listener.open_files import fitting, num_open_files, raise_open_files
from darkroom.worker.guard.listener.server import GuardedServer
from darkroom.worker.guard.rate_limits import RateLimits
from darkroom.worker.guard.safe_address import AddressGuard
from darkroom.worker.observe.http_metrics import HttpMetrics
from darkroom.worker.observe.logs import LogForm, Redaction, set_up_logs
from darkroom.worker.observe.prompt_texts import PromptTexts
from darkroom.worker.prompts.rules import PromptRules
from darkroom.worker.settings.environment import has_colors, load_settings, trusted_proxies
from darkroom.worker.settings.settings import Settings
from darkroom.worker.sources.broker import Broker, Producer

EXIT_UNUSABLE = 1
EXIT_BAD_SETTING = 2
GOODBYE_SECONDS = 30


class GatewayServer(GuardedServer):
    """Server that a signal stops once its replies are sent, without the signal's own exit code."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def build_services(settings: Settings) -> GatewayServices:
    """Return the services of the gateway's routes. Raises SettingsInvalid for settings that do not go together."""
    http_metrics = HttpMetrics()
    per_second = settings.callers.requests_per_second
    is_counted_here = per_second is None or not settings.database.is_set  # a gateway without a server is alone
    rates = None if per_second is None or is_counted_here else RequestRates(settings.database, per_second)
    database = GatewayDatabase(
        settings.database, settings.folders.state_path, has_broker=settings.broker.kind is not None
    )
    records = JobRecords(database)
    producer, make_broker = _transport(settings, database)
    return GatewayServices(
        requests=RequestServices(
            guard=Gatekeeper(settings.auth_config()),
            caller_limits=settings.callers,
            caller_rates=RateLimits(settings.callers),
            bodies=Bodies(settings.bodies, settings.json_limits()),
            modifiers=build_registry(settings.folders.modifiers_path),
            prompt_rules=PromptRules(settings.prompts, settings.node_policy),
            http_metrics=http_metrics,
            metrics_are_open=settings.access.metrics_are_open,
        ),
        envelopes=unsigned_envelopes(),
        dialects=tuple(gateway_routers()),
        metrics=GatewayMetrics(http_metrics),
        limits=RequestLimits(
            settings.queue.job_timeout_seconds,
            AddressGuard(settings.network.private_hosts),
            settings.s3.endpoint_url,
        ),
        gateway=Gateway(
            records,
            producer,
            settings.gateway,
            settings.callers,
            settings.retention,
            rates,
            settings.queue.max_wait_seconds,
        ),
        tokens=WorkerTokens(records),
        desk=WorkerDesk(records, make_broker, settings.broker.lease_seconds),
        request_rates=rates,
        fetches_models=settings.models.fetch_missing != "off",
    )


def _transport(settings: Settings, database: GatewayDatabase) -> tuple[Producer, Callable[[], Broker]]:
    """Return the producer of jobs, and the function that makes a worker's side of it. Raises SettingsInvalid."""
    broker = settings.broker
    if broker.gateway_url:
        raise SettingsInvalid("GATEWAY_URL: is for workers; got one at a gateway")
    if broker.kind is not None:
        if not database.is_postgres:
            raise SettingsInvalid("DATABASE_URL: not set; a gateway with a broker keeps its jobs in PostgreSQL")
        return build_producer(broker), lambda: broker_of_gateway(broker)
    queue = DatabaseQueue(database, broker.result_seconds, JobLedger(database))
    return queue, lambda: DatabaseBroker(queue, broker.lease_seconds)


def serve_gateway(**overrides: Any) -> int:
    """Run a gateway until it is stopped; return the exit code."""
    try:
        settings = load_settings(**overrides).settings
        check_may_listen(settings)
        form = LogForm(settings.log.format, settings.log.effective_level, has_colours=has_colors())
        set_up_logs(form, Redaction(settings.secret_values(), PromptTexts()))
        raise_open_files()
        map_large_blocks()
        services = build_services(settings)
    except SettingsInvalid as error:
        sys.stderr.write(f"Settings: {error.message}\n")
        return EXIT_BAD_SETTING
    config = uvicorn.Config(
        create_gateway_app(services, has_access_log=settings.log.has_access_log),
        host=settings.listen_host,
        port=settings.listener.port,
        ws="none",
        access_log=False,
        log_config=None,
        server_header=False,
        timeout_graceful_shutdown=GOODBYE_SECONDS,
    )
    connections = ConnectionTable(fitting(settings.connections, num_open_files()), trusted_proxies())
    tls = settings.tls_files()
    structlog.get_logger("gateway").info("gateway starting", host=settings.listen_host, port=settings.listener.port)
    try:
        server = GatewayServer(config, connections, busy, None if tls is None else Certificate(tls))
        server.run()
    except (WorkerError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_UNUSABLE
    return 0 if server.started else EXIT_UNUSABLE
