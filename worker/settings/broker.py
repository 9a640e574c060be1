"""Settings of the broker from which jobs come besides HTTP."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, ClassVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, SecretStr

from darkroom.worker.settings.section import Address, PositiveInt, PositiveSeconds, Section, env

SCHEMES = ("redis", "rediss", "unix", "nats", "tls", "sqs", "https", "http")


class BrokerKind(StrEnum):
    """Kinds of brokers, by the extra that has their library."""

    REDIS = "redis"
    NATS = "nats"
    SQS = "sqs"
    GATEWAY = "gateway"


def _check_broker(value: SecretStr) -> SecretStr:
    url = value.get_secret_value()
    if url and urlsplit(url).scheme not in SCHEMES:
        raise ValueError("expected redis://, rediss://, unix://, nats://, tls:// or the https:// URL of an SQS queue")
    return value


def _check_gateway(value: str) -> str:
    parts = urlsplit(value)
    if value and (parts.scheme not in ("https", "http") or not parts.hostname or parts.query or parts.fragment):
        raise ValueError("expected https:// and the gateway's host")
    if parts.username is not None or parts.password is not None:
        raise ValueError("expected no user and password; the token is WORKER_TOKEN")
    return value.rstrip("/")


class BrokerConfig(Section):
    """Connection to the broker, leases and retention. Without `url` no jobs come from a broker."""

    whole: ClassVar[str] = "BROKER_QUEUES"
    """The other SQS queues where jobs come from one ([queues](fleet.md#sqs)), `NAME=URL` by commas:
    `BROKER_QUEUES=results=https://…,events=https://…`. Each has a variable of its own, too, which wins."""

    url: Annotated[Annotated[SecretStr, AfterValidator(_check_broker)], env("BROKER_URL")] = SecretStr("")
    """Broker to take jobs from besides HTTP ([queues](fleet.md#jobs-from-a-queue)): Redis (`redis://`,
    `rediss://` with TLS, `unix://`), NATS (`nats://`, `tls://`) or the URL of an SQS queue. Empty: none; at a
    [gateway](fleet.md#gateway) the queue in its database; at a worker the gateway that it asks: `GATEWAY_URL`, with
    the token `WORKER_TOKEN`, or a file of it, `WORKER_TOKEN_FILE`
    ([workers over HTTPS](fleet.md#workers-over-https))."""

    gateway_url: Annotated[Annotated[str, AfterValidator(_check_gateway)], env("GATEWAY_URL", part_of="BROKER_URL")] = (
        ""
    )
    """Gateway to ask for jobs, in place of a broker ([workers over HTTPS](fleet.md#workers-over-https)): `https://` and
    its host. Empty: none."""

    worker_token: Annotated[SecretStr, env("WORKER_TOKEN", part_of="BROKER_URL")] = SecretStr("")
    """Token of this worker for the gateway, as `darkroom workers new` makes it."""

    prefix: Annotated[Annotated[str, Field(pattern=r"^[A-Za-z0-9_{}.-]{1,64}$")], env("BROKER_PREFIX")] = "darkroom"
    """Prefix of its keys; with braces, `{darkroom}`, for Redis Cluster."""

    lease_seconds: Annotated[Annotated[float, Field(ge=1, le=3600)], env("BROKER_LEASE_SECONDS")] = 30.0
    """Seconds after which another worker takes a job whose worker is gone. It is renewed in thirds. Of a gateway: for
    workers that ask it."""

    num_held: PositiveInt | None = None
    """Jobs of the broker that the worker holds at once. None: as many as its engines take, the waiting ones among
    them."""

    max_deliveries: PositiveInt = 3
    """Deliveries after which a job whose workers were lost each time becomes a dead letter: more are no accident."""

    result_seconds: PositiveSeconds = 86400.0
    """Seconds for which results, and the ids of jobs, are kept at the broker: longer than gateways are ever away."""

    price_per_hour: Annotated[Annotated[float, Field(ge=0, le=1e6)], env("WORKER_PRICE_PER_HOUR")] = 0.0
    """Price of an hour of this worker, in one currency for the whole fleet. `max_cost` of requests counts in it, and
    gateways weigh it against the wait ([routing](fleet.md#routing)). 0: it costs nothing."""

    result_queue: Annotated[Address, env("BROKER_RESULT_QUEUE", key="results")] = ""
    """Queue for results. Empty: results go to webhooks alone."""

    event_queue: Annotated[Address, env("BROKER_EVENT_QUEUE", key="events")] = ""
    """Queue for progress. Empty: none is sent."""

    cancel_queue: Annotated[Address, env("BROKER_CANCEL_QUEUE", key="cancellations")] = ""
    """Queue whose messages cancel jobs. Empty: jobs are not cancelled there."""

    @property
    def is_set(self) -> bool:
        return self.kind is not None

    @property
    def kind(self) -> BrokerKind | None:
        """Kind of the broker, None without one."""
        scheme = urlsplit(self.url.get_secret_value()).scheme
        if not scheme:
            return BrokerKind.GATEWAY if self.gateway_url else None
        if scheme in ("nats", "tls"):
            return BrokerKind.NATS
        return BrokerKind.SQS if scheme in ("sqs", "https", "http") else BrokerKind.REDIS
