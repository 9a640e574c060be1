"""Request and response bodies, and the conversion of validation errors into problems with their field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self

from pydantic import ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator

from darkroom.contract.quality import QualityName
from darkroom.contract.wire import PARTNER_KEYS
from darkroom.worker.errors import Problem, RequestRejected
from darkroom.worker.guard.json_scan import FoundJson
from darkroom.worker.inputs.download_headers import MAX_PREFIXES, find_prefix_problem
from darkroom.worker.inputs.uploads import ReceivedFile
from darkroom.worker.json.request_model import RequestModel
from darkroom.worker.json.values import JsonObject
from darkroom.worker.outputs.options import MAX_THUMBNAIL_PX, MIN_THUMBNAIL_PX, ImageFormat, MetadataLevel
from darkroom.worker.outputs.targets.form import OWN_HEADERS, find_header_problem, without_nulls
from darkroom.worker.outputs.targets.hub import HubInput
from darkroom.worker.outputs.targets.put import PutInput
from darkroom.worker.outputs.targets.s3 import S3Input
from darkroom.worker.prompts.workflows.media import NoWorkflow, accept, find_encoded_workflow
from darkroom.worker.settings.priority import MAX_PRIORITY, MIN_PRIORITY
from darkroom.worker.storage.job import WebhookEvent
from darkroom.worker.storage.stored_workflow import StoredWorkflow

YES = frozenset({"1", "true", "yes", "on"})
MAX_ELEMENTS = 20_000  # of a field: each invalid element would be a problem of its own
FREE_FIELDS = frozenset({"workflow_json", "extra_data"})  # their content is not validated here
MAX_FIELD_LENGTH = 200
MAX_METADATA_BYTES = 8192
MAX_KEY_LENGTH = 8192  # of a partner's key: tokens are signed and hold claims
MAX_EXPIRES_SECONDS = 30 * 86400.0
OWN_DOWNLOAD_HEADERS = OWN_HEADERS | {"accept-encoding", "range", "if-none-match", "if-modified-since"}


PartnerKey = Annotated[SecretStr, Field(max_length=MAX_KEY_LENGTH)]


class ExtraData(RequestModel):
    """Extra data that ComfyUI's clients send with a prompt; an image with full metadata carries its `workflow`."""

    model_config = ConfigDict(extra="ignore")

    extra_pnginfo: dict[str, Any] = Field(default_factory=dict)
    api_key_comfy_org: PartnerKey = Field(
        default=SecretStr(""), description="Key of comfy.org for partner nodes, which the fallback engine runs."
    )
    auth_token_comfy_org: PartnerKey = Field(default=SecretStr(""), description="Token of comfy.org, as the page has.")

    def partner_keys(self) -> dict[str, str]:
        """Return the keys for partner nodes by their names; empty without any."""
        given = {name: getattr(self, name).get_secret_value() for name in PARTNER_KEYS}
        return {name: value for name, value in given.items() if value}


class OutputInput(RequestModel):
    """Delivery format of this request's images. Fields that are left out keep the node's format."""

    model_config = ConfigDict(extra="forbid")

    format: ImageFormat | None = None
    quality: int | None = Field(default=None, ge=1, le=100)
    metadata: MetadataLevel | None = None
    thumbnail_size: int | None = Field(default=None, ge=MIN_THUMBNAIL_PX, le=MAX_THUMBNAIL_PX)

    @field_validator("format", mode="before")
    @classmethod
    def _other_name(cls, value: object) -> object:
        return "jpeg" if value == "jpg" else value

    @model_validator(mode="after")
    def _lossy(self) -> OutputInput:
        if self.quality is not None and self.format in (None, "png"):
            raise ValueError("quality goes with a format that has one: jpeg, webp or avif")
        return self


class WebhookInput(RequestModel):
    model_config = ConfigDict(extra="ignore")

    url: str = ""
    extra_params: dict[str, Any] = Field(default_factory=dict)
    timeout: float | None = Field(default=None, gt=0, le=600)
    secret: str | None = None
    events: list[WebhookEvent] = Field(default_factory=list)


class StoresInput(RequestModel):
    """Destination of outputs: at most one store. Without one it is the operator's, if there is one."""

    s3: S3Input | None = None
    put: PutInput | None = None
    hf: HubInput | None = None

    @model_validator(mode="after")
    def _one_store(self) -> Self:
        if len(self.stores()) > 1:
            *names, last = StoresInput.model_fields
            raise ValueError(f"give at most one of {', '.join(names)} and {last}")
        return self

    def stores(self) -> dict[str, dict[str, Any]]:
        """Return the settings of the store that the request names, by its field; empty without one."""
        given = {name: getattr(self, name) for name in StoresInput.model_fields}
        return {name: form.model_dump(exclude_none=True) for name, form in given.items() if form is not None}


class GenerateInput(StoresInput):
    """Input of a generate request, with exactly one of `workflow_json`, `workflow` and `modifier`."""

    model_config = ConfigDict(extra="allow")

    request_id: str = ""
    workflow_json: dict[str, Any] = Field(default_factory=dict)
    overrides: dict[str, Any] = Field(
        default_factory=dict,
        description="Values for inputs of the workflow: `6.text` (node id), `My title.cfg`, `KSampler.steps` "
        "(class), `#seed` (every input of the name, or the one of the page's app mode).",
    )
    workflow: str = Field(default="", description="Name of a stored workflow, or `NAME@VERSION`.")
    inputs: dict[str, Any] = Field(
        default_factory=dict, description="Values for the named inputs of `workflow`, or of the page's app mode."
    )
    modifier: str = ""
    modifications: dict[str, Any] = Field(default_factory=dict)
    download_headers: dict[str, dict[str, str]] = Field(
        default_factory=dict,
        max_length=MAX_PREFIXES,
        description="Headers for downloads of inputs, by the beginning of the addresses that get them.",
    )
    webhook: WebhookInput | None = None
    output: OutputInput | None = None
    extra_data: ExtraData | None = None
    return_outputs_as_base64: bool = False
    previews: bool = Field(default=False, description="Previews of the unfinished image in the job's streams.")
    quality: QualityName | None = Field(
        default=None,
        description="`exact`: the plain path's bits; `same`: within the tolerance of parity; `close`: that, but its "
        "bits may depend on concurrent requests; `draft`: faster and less alike. Left out: the modification `quality`, "
        "else `same`.",
    )
    split: bool | None = Field(
        default=None,
        description="Run on several engines of the worker at once, where they are idle and the workflow has parts. "
        "Left out: on one.",
    )
    metadata: dict[str, Any] = Field(
        default_factory=dict, description="Returned with the job, in its result, its webhooks and the list of jobs."
    )
    timeout: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="Seconds that the job may run, at most JOB_TIMEOUT."
    )
    expires: float | None = Field(
        default=None,
        gt=0,
        le=MAX_EXPIRES_SECONDS,
        allow_inf_nan=False,
        description="Seconds until the job ends as `timeout` unless an engine has begun with it.",
    )
    deadline: float | None = Field(
        default=None,
        gt=0,
        le=MAX_EXPIRES_SECONDS,
        allow_inf_nan=False,
        description="Seconds within which the job is to have ended. Refused where it would take longer, as estimated.",
    )
    max_cost: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="The most that the time at the worker may cost, by its WORKER_PRICE_PER_HOUR; refused above.",
    )
    priority: Annotated[int, Field(ge=MIN_PRIORITY, le=MAX_PRIORITY, description="Higher ones are made first.")] = 0

    @field_validator("priority", mode="before")
    @classmethod
    def _no_boolean(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError("is true or false; expected a whole number")
        return value

    @field_validator("webhook", mode="before")
    @classmethod
    def _as_an_address(cls, value: object) -> object:
        return {"url": value} if isinstance(value, str) else value

    @field_validator("overrides", "inputs")
    @classmethod
    def _values_alone(cls, value: dict[str, Any]) -> dict[str, Any]:
        return {name: item for name, item in value.items() if item is not None}

    @field_validator("download_headers", mode="before")
    @classmethod
    def _headers_of_servers(cls, value: object) -> object:
        if not isinstance(value, Mapping):
            return value
        return {prefix: without_nulls(headers) for prefix, headers in value.items()}

    @field_validator("download_headers")
    @classmethod
    def _name_servers(cls, value: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
        for prefix, headers in value.items():
            problem = find_prefix_problem(prefix) or find_header_problem(headers, OWN_DOWNLOAD_HEADERS)
            if problem:
                raise ValueError(problem)
        return value

    @field_validator("metadata")
    @classmethod
    def _is_small(cls, value: dict[str, Any]) -> dict[str, Any]:
        size_bytes = len(json.dumps(value, separators=(",", ":")).encode())
        if size_bytes > MAX_METADATA_BYTES:
            raise ValueError(
                f"metadata: too large; got {size_bytes} bytes of JSON, expected at most {MAX_METADATA_BYTES}"
            )
        return value

    @model_validator(mode="after")
    def _one_mode(self) -> GenerateInput:
        if sum(map(bool, (self.workflow_json, self.workflow, self.modifier))) != 1:
            raise ValueError("give exactly one of workflow_json, workflow and modifier")
        if self.modifications and not self.modifier:
            raise ValueError("modifications go with a modifier only")
        for name in ("overrides", "inputs"):
            if getattr(self, name) and self.modifier:
                raise ValueError(f"{name} go with a workflow only; a modifier has modifications")
        return self


class GenerateRequest(RequestModel):
    input: GenerateInput


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """Request whose form is valid. `raw` is the `input` object as it came, for its hash."""

    input: GenerateInput
    raw: Mapping[str, Any]
    is_vast: bool
    wants_base64: bool
    wants_engine_response: bool
    base_url: str
    files: Mapping[str, ReceivedFile] = field(default_factory=dict)
    traceparent: str = ""
    warnings: tuple[Mapping[str, Any], ...] = ()
    receipt: str = ""  # of a broker's delivery
    queued_at_ms: int = 0  # at a broker; 0: it comes now
    stored: StoredWorkflow | None = None  # that `workflow` names


def parse_generate(payload: JsonObject, found_json: FoundJson | None = None) -> GenerateInput:
    """Validate the form of a request. Raises RequestRejected with its problems.

    A workflow in a file is unpacked within the limits of `found_json`.
    """
    given = payload.get("input")
    if isinstance(given, Mapping) and isinstance(given.get("workflow_json"), str):
        given = {**given, "workflow_json": _unpacked(given["workflow_json"], found_json)}
        payload = {**payload, "input": given}
    for name, value in given.items() if isinstance(given, Mapping) else ():
        if name not in FREE_FIELDS and _has_more_elements(value, MAX_ELEMENTS):
            message = f"has too many elements; expected at most {MAX_ELEMENTS}"
            field = f"input.{name}"[:MAX_FIELD_LENGTH]
            raise RequestRejected([Problem(message, field=field, type="too_long", allowed={"maximum": MAX_ELEMENTS})])
    try:
        return GenerateRequest.model_validate(payload).input
    except ValidationError as error:
        raise RequestRejected([problem_of(entry) for entry in error.errors(include_url=False)]) from None


def _unpacked(text: str, found_json: FoundJson | None) -> JsonObject:
    try:
        return find_encoded_workflow(text, accept if found_json is None else found_json.check)
    except NoWorkflow as error:
        field = "input.workflow_json"
        raise RequestRejected([Problem(f"workflow_json: {error}", field, type="no_workflow")]) from None


def _has_more_elements(value: object, limit: int) -> bool:
    """Return True if a JSON value has more than `limit` elements, at any depth."""
    num_elements, waiting = 0, [value]
    while waiting:
        item = waiting.pop()
        if not isinstance(item, dict | list):
            continue
        num_elements += len(item)
        if num_elements > limit:
            return True
        waiting.extend(item.values() if isinstance(item, dict) else item)
    return False


def problem_of(entry: Any) -> Problem:
    """Convert one of pydantic's errors into a Problem; `entry` is an item of `errors()`."""
    message = str(entry["msg"]).removeprefix("Value error, ")
    context = entry.get("ctx") or {}
    bounds = {name: context[name] for name in ("gt", "ge", "lt", "le", "expected") if name in context}
    if entry["type"] == "missing" and entry["loc"] == ("input",):
        message = 'input: missing; expected the request inside it: {"input": {"modifier": ...}}'
    if entry["type"] == "extra_forbidden":
        message = "is not one of the options"
        bounds = {"options": list(OutputInput.model_fields)} if "output" in entry["loc"] else {}
    return Problem(
        message, field=".".join(str(part) for part in entry["loc"]), type=entry["type"], allowed=bounds or None
    )


def is_true(header: str | None) -> bool:
    return header is not None and header.strip().lower() in YES
