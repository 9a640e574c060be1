"""Base class of modifiers: typed fields that are written into a workflow file.

A modifier is a pydantic class. Each field names with `Into` the input of a node of the workflow that it fills, so the
class is at once the check of a request, its documentation (the JSON schema) and the recipe. Nothing here draws a random
number: a seed that is left out stays the word `__RANDOM_INT__`, which the front resolves once, together with every
other one in the prompt, and stores.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypedDict

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from darkroom.contract.nearest import nearest_name
from darkroom.contract.quality import QualityName

RANDOM_INT: Final = "__RANDOM_INT__"
MAX_PROBLEMS: Final = 100

Choices = Callable[[str, str], Sequence[str] | None]
"""Node class and input name -> what the engine offers there; None where an input is no choice."""


class FieldProblem(TypedDict):
    """Problem of one field; `allowed` is the list of keys, or a small JSON schema of the value."""

    field: str
    message: str
    allowed: Any


class ModificationsRejected(Exception):
    """Error for modifications that do not fit the modifier."""

    def __init__(self, modifier: str, problems: list[FieldProblem], num_unlisted: int = 0) -> None:
        self.modifier = modifier
        self.problems = problems
        self.num_unlisted = num_unlisted
        super().__init__(f"{modifier}: " + "; ".join(f"{p['field']}: {p['message']}" for p in problems))


@dataclass(frozen=True, slots=True)
class Into:
    """Input of a workflow's node that a field fills."""

    node_id: str
    input_name: str


@dataclass(frozen=True, slots=True)
class OfFamily:
    """Mark of a field whose default is that of the checkpoint's family of models: the parameter of this name."""

    parameter: str


LEFT_OUT: Any = None
"""Default of a field that keeps the workflow's value; with `OfFamily`, unless the checkpoint is of another family."""


def no_boolean(value: Any) -> Any:
    """Refuse a JSON boolean for a number: in Python it would be one."""
    if isinstance(value, bool):
        raise PydanticCustomError("number_expected", "must be a number, not true or false")
    return value


# Ranges are those that ComfyUI enforces on the nodes the values end in.
Seed = Annotated[Annotated[int, Field(ge=0, le=2**64 - 1)] | Literal["__RANDOM_INT__"], BeforeValidator(no_boolean)]
Steps = Annotated[int, Field(ge=1, le=10_000), BeforeValidator(no_boolean)]
Pixels = Annotated[int, Field(ge=16, le=16_384), BeforeValidator(no_boolean)]
Guidance = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False), BeforeValidator(no_boolean)]
Factor = Annotated[float, Field(ge=0.01, le=8, allow_inf_nan=False), BeforeValidator(no_boolean)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), BeforeValidator(no_boolean)]
Denoise = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), BeforeValidator(no_boolean)]
Name = Annotated[str, Field(min_length=1)]


class Modifier(BaseModel):
    """Base of all modifiers. Numbers may come as text ("20"), as ComfyUI takes them; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workflow_file: ClassVar[str]
    example: ClassVar[Mapping[str, Any]] = {}
    """Modifications that draw something; names of model files are put in by `example_with`."""

    draws_videos: ClassVar[bool] = False
    """True if the result is a video or audio, which an API of images does not offer."""

    quality: Annotated[
        QualityName | None,
        Field(description="`exact`, `same`, `close` or `draft`, by likeness. The request's own field wins."),
    ] = None

    @classmethod
    def parse(
        cls,
        modifications: Mapping[str, Any],
        defaults: Mapping[str, Any] | None = None,
        family: Mapping[str, Any] | None = None,
    ) -> Self:
        """Parse the modifications. A null counts as left out; `defaults` fill fields that were left out.

        `family` are default parameters of the checkpoint's family, for fields with `OfFamily` that are still open.
        Raises ModificationsRejected with every problem.
        """
        given = {name: value for name, value in modifications.items() if value is not None}
        filled = cls.defaults_of(family or {})
        filled |= {name: value for name, value in (defaults or {}).items() if name in cls.model_fields} | given
        try:
            return cls.model_validate(filled)
        except ValidationError as error:
            raise cls._rejected(error.errors(include_url=False)) from None

    @classmethod
    def places(cls) -> dict[str, tuple[Into, ...]]:
        """Return the workflow inputs that each field fills."""
        return {
            name: tuple(item for item in field.metadata if isinstance(item, Into))
            for name, field in cls.model_fields.items()
        }

    @classmethod
    def defaults_of(cls, family: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults by field that the parameters of a family give."""
        fields = cls.family_fields().items()
        return {name: family[parameter] for name, parameter in fields if parameter in family}

    @classmethod
    def family_fields(cls) -> dict[str, str]:
        """Return a map from field names to the parameters of the checkpoint's family that are their defaults."""
        return {
            name: item.parameter
            for name, field in cls.model_fields.items()
            for item in field.metadata
            if isinstance(item, OfFamily)
        }

    @classmethod
    def workflow_values(cls, workflow: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the workflow for fields that have no default of their own."""
        return {
            name: workflow[places[0].node_id]["inputs"].get(places[0].input_name)
            for name, places in cls.places().items()
            if places and not cls.model_fields[name].is_required() and cls.model_fields[name].default is None
        }

    @classmethod
    def field_at(cls, node_id: str, input_name: str) -> str | None:
        """Return the field that fills an input, to name it in a problem that the graph check finds there."""
        wanted = Into(node_id, input_name)
        return next((name for name, places in cls.places().items() if wanted in places), None)

    def fill(self, workflow: Mapping[str, Any]) -> dict[str, Any]:
        """Return the prompt: a copy of `workflow` with this modifier's values in their places.

        None leaves the workflow's value.
        """
        prompt: dict[str, Any] = copy.deepcopy(dict(workflow))
        for name, places in self.places().items():
            value = getattr(self, name)
            for place in places if value is not None else ():
                prompt[place.node_id]["inputs"][place.input_name] = value
        return prompt

    def make(self, workflow: Mapping[str, Any]) -> dict[str, Any]:
        """Return the prompt as it is sent: that of `fill`, with what changes whole nodes of it."""
        return self.fill(workflow)

    @classmethod
    def choice_fields(cls, workflow: Mapping[str, Any], choices: Choices) -> dict[str, Sequence[str]]:
        """Return the fields with one of the engine's choices (a model file, a sampler), and those choices."""
        found = {}
        for name, places in cls.places().items():
            for place in places:
                allowed = choices(str(workflow[place.node_id]["class_type"]), place.input_name)
                if allowed is not None:
                    found[name] = allowed
        return found

    @classmethod
    def example_with(cls, workflow: Mapping[str, Any], choices: Choices) -> dict[str, Any] | None:
        """Return the example with names of files that the engine has.

        Returns None when it lacks one, or there is no example.
        """
        shown, kept = dict(cls.example), cls.workflow_values(workflow)
        for name, allowed in cls.choice_fields(workflow, choices).items():
            field = cls.model_fields[name]
            value = shown.get(name, None if field.is_required() else field.default) or kept.get(name)
            if value in allowed or (not value and not field.is_required()):
                continue
            if not allowed:
                return None
            shown[name] = allowed[0]
        return (
            shown if all(not field.is_required() or name in shown for name, field in cls.model_fields.items()) else None
        )

    @classmethod
    def _rejected(cls, errors: list[ErrorDetails]) -> ModificationsRejected:
        by_field: dict[str, FieldProblem] = {}
        schema, num_unlisted = cls.model_json_schema(), 0
        for error in errors:
            path = cls._path(error)
            # A value of several possible types gives an error for each; the first is that of the main type.
            field = ".".join(map(str, path))
            if field in by_field:
                continue
            if len(by_field) >= MAX_PROBLEMS:
                num_unlisted += 1
                continue
            by_field[field] = cls._problem(path, error, schema)
        order = list(cls.model_fields)
        problems = sorted(by_field.values(), key=lambda problem: _place(problem["field"].partition(".")[0], order))
        return ModificationsRejected(cls.__name__, problems, num_unlisted)

    @classmethod
    def _path(cls, error: ErrorDetails) -> tuple[int | str, ...]:
        """Return the path of the wrong value. An error of the whole names its field by its type."""
        path = error["loc"]
        if not path:
            return (error["type"],) if error["type"] in cls.model_fields else ()
        return path if len(path) > 1 and isinstance(path[1], int) else path[:1]

    @classmethod
    def _problem(cls, path: tuple[int | str, ...], error: ErrorDetails, schema: Mapping[str, Any]) -> FieldProblem:
        field = ".".join(map(str, path))
        fields = _fields_beside(path, schema)
        if error["type"] == "extra_forbidden":
            nearest = nearest_name(str(path[-1]), fields, by_start=True)
            hint = f"; did you mean `{nearest}`?" if nearest else ""
            return {"field": field, "message": f"{cls.__name__} has no such field{hint}", "allowed": list(fields)}
        message = "is required" if error["type"] == "missing" else error["msg"]
        wanted = fields.get(str(path[-1]), {}) if path else {}
        hidden = {"title", "default", "description"}
        allowed = {k: v for k, v in wanted.items() if k not in hidden} | error.get("ctx", {}).get("allowed", {})
        return {"field": field, "message": message, "allowed": allowed}


def _fields_beside(path: tuple[int | str, ...], schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields, with their JSON schemas, of the object that has the path's last name."""
    if len(path) < 3:
        properties: dict[str, Any] = schema["properties"]
        return properties
    inner = [part["properties"] for part in schema.get("$defs", {}).values() if "properties" in part]
    return next((fields for fields in inner if path[-1] in fields), inner[0] if inner else {})


def with_ancestors_only(prompt: Mapping[str, Any], node_id: str) -> dict[str, Any]:
    """Return the nodes that one of them needs, itself included.

    Nodes that a choice has made useless are neither checked nor run.
    """
    needed, to_look_at = set(), [node_id]
    while to_look_at:
        name = to_look_at.pop()
        if name not in needed:
            needed.add(name)
            links = (value for value in prompt[name]["inputs"].values() if isinstance(value, list))
            to_look_at += [str(link[0]) for link in links]
    return {name: node for name, node in prompt.items() if name in needed}


def _place(name: str, order: list[str]) -> int:
    return order.index(name) if name in order else len(order)
