"""Intake of the front: what takes jobs from the broker of the settings."""

from __future__ import annotations

from collections.abc import Callable

from darkroom.contract.graph.prompt_graph import model_files_in
from darkroom.worker.api.services import Services
from darkroom.worker.app.integrations import build_broker
from darkroom.worker.json.values import JsonObject
from darkroom.worker.settings.broker import BrokerConfig
from darkroom.worker.sources.announcer import Announcer
from darkroom.worker.sources.intake import Intake
from darkroom.worker.storage.job import Job


def build_intake(config: BrokerConfig, services: Services, has_room: Callable[[], bool]) -> Intake | None:
    """Return the intake of jobs from the broker; None without one. Raises SettingsInvalid."""
    broker = build_broker(config)
    if broker is None:
        return None
    from darkroom.worker.api.broker_messages import (  # most workers have no broker
        accept_message,
        message_result,
        refuse_message,
    )

    def routing_facts() -> JsonObject:
        """Return the facts of gateways' routing: speed, price of an hour, runs at a time, seconds until a new job."""
        seconds = services.jobs.run_clock.seconds_of(1.0)
        return {
            "speed": 1 / seconds if seconds > 0 else 0.0,
            "price_per_hour": config.price_per_hour,
            "num_runs": services.engines.pool.num_runs,
            "wait_seconds": round(services.jobs.queue_info.wait_of_a_new_job(), 3),
        }

    def models_of(job: Job) -> list[str]:
        nodes = services.engines.pool.any_client.facts.last_object_info
        return [file.name for file in model_files_in(job.prompt, nodes)]

    return Intake(
        broker,
        config,
        lambda: services.engines.pool.num_places,
        services.jobs.store,
        services.jobs.pipeline,
        accept=lambda delivery: accept_message(services, delivery),
        refuse=lambda delivery, error: refuse_message(services, delivery, error),
        result_of=lambda job: message_result(services, job),
        has_room=has_room,
        models_of=models_of,
        announcer=Announcer(
            broker,
            lambda: services.engines.pool.any_client.known_object_info(),
            routing_facts,
            None if services.engines.fallback is None else services.engines.fallback.nodes.last,
        ),
    )
