"""The Ray Serve application: an ingress, and one worker for each replica."""

from __future__ import annotations

from ray import serve
from ray.serve import Application

from darkroom.worker.integrations.ray.ingress import Ingress
from darkroom.worker.integrations.ray.options import RayOptions
from darkroom.worker.integrations.ray.replica import Replica

HEALTH_PERIOD_SECONDS = 10.0
HEALTH_TIMEOUT_SECONDS = 30.0
INGRESS_REQUESTS = 1000


def build_application(options: RayOptions) -> Application:
    """Return the application."""
    resources = {"num_gpus": options.gpus, "num_cpus": options.cpus}
    replicas = serve.deployment(
        Replica,
        name="Replica",
        ray_actor_options=resources,
        max_ongoing_requests=options.max_ongoing_requests,
        max_queued_requests=options.max_queued_requests,
        autoscaling_config={
            "min_replicas": options.min_replicas,
            "max_replicas": options.max_replicas,
            "target_ongoing_requests": options.target_ongoing_requests,
            "downscale_delay_s": options.downscale_delay_seconds,
        },
        graceful_shutdown_timeout_s=options.drain_seconds,
        health_check_period_s=HEALTH_PERIOD_SECONDS,
        health_check_timeout_s=HEALTH_TIMEOUT_SECONDS,
    )
    ingress = serve.deployment(
        Ingress,
        name="Ingress",
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=INGRESS_REQUESTS,
    )
    return ingress.bind(replicas.bind(options), options)
