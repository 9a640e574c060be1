"""What a modifier is: typed fields that are written into a workflow file.

A modifier is a pydantic class. Each field says with `Into` which input of which node of the workflow it fills, so the
class is at once the check of a request, its documentation (the JSON schema) and the recipe. Nothing here draws a random
number: a seed that is left out stays the word `__RANDOM_INT__`, which the front resolves once, together with every
other one in the prompt, and stores.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypedDict

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

RANDOM_INT: Final = "__RANDOM_INT__"


class FieldProblem(TypedDict):
    """One thing wrong with the modifications; `allowed` is the list of keys, or a small JSON schema of the value."""

    field: str
    message: str
    allowed: Any


class ModificationsRejected(Exception):
    """The modifications do not fit the modifier. Holds every problem, in the order of the fields."""

    def __init__(self, modifier: str, problems: list[FieldProblem]) -> None:
        self.modifier = modifier
        self.problems = problems
        super().__init__(f"{modifier}: " + "; ".join(f"{p['field']}: {p['message']}" for p in problems))


@dataclass(frozen=True, slots=True)
class Into:
    """The place in the workflow that a field fills."""

    node_id: str
    input_name: str


def _no_boolean(value: Any) -> Any:
    """JSON's true is no number, although Python's is."""
    if isinstance(value, bool):
        raise PydanticCustomError("number_expected", "must be a number, not true or false")
    return value


# Ranges are those that ComfyUI enforces on the nodes the values end in.
Seed = Annotated[Annotated[int, Field(ge=0, le=2**64 - 1)] | Literal["__RANDOM_INT__"], BeforeValidator(_no_boolean)]
Steps = Annotated[int, Field(ge=1, le=10_000), BeforeValidator(_no_boolean)]
Pixels = Annotated[int, Field(ge=16, le=16_384), BeforeValidator(_no_boolean)]
Guidance = Annotated[float, Field(ge=0, le=100, allow_inf_nan=False), BeforeValidator(_no_boolean)]
Denoise = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False), BeforeValidator(_no_boolean)]
Name = Annotated[str, Field(min_length=1)]


class Modifier(BaseModel):
    """Base of all modifiers. Numbers may come as text ("20"), as ComfyUI takes them; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    workflow_file: ClassVar[str]

    @classmethod
    def parse(cls, modifications: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Self:
        """Checked fields. A null counts as left out; `defaults` fill fields of this modifier that were left out.

        Raises ModificationsRejected with every problem.
        """
        given = {name: value for name, value in modifications.items() if value is not None}
        filled = {name: value for name, value in (defaults or {}).items() if name in cls.model_fields} | given
        try:
            return cls.model_validate(filled)
        except ValidationError as error:
            raise ModificationsRejected(cls.__name__, cls._problems(error.errors(include_url=False))) from None

    @classmethod
    def places(cls) -> dict[str, tuple[Into, ...]]:
        """Field name -> the workflow inputs it fills."""
        return {
            name: tuple(item for item in field.metadata if isinstance(item, Into))
            for name, field in cls.model_fields.items()
        }

    @classmethod
    def field_at(cls, node_id: str, input_name: str) -> str | None:
        """The field that fills this input, so that a problem the graph check finds there can name it."""
        wanted = Into(node_id, input_name)
        return next((name for name, places in cls.places().items() if wanted in places), None)

    def fill(self, workflow: Mapping[str, Any]) -> dict[str, Any]:
        """A prompt: a copy of `workflow` with this modifier's values in their places."""
        prompt: dict[str, Any] = copy.deepcopy(dict(workflow))
        for name, places in self.places().items():
            for place in places:
                prompt[place.node_id]["inputs"][place.input_name] = getattr(self, name)
        return prompt

    @classmethod
    def _problems(cls, errors: list[ErrorDetails]) -> list[FieldProblem]:
        by_field: dict[str, FieldProblem] = {}
        for error in errors:
            field = str(error["loc"][0]) if error["loc"] else ""
            # A value of several possible types gives an error for each; the first is that of the main type.
            by_field.setdefault(field, cls._problem(field, error))
        order = [*cls.model_fields, *by_field]
        return sorted(by_field.values(), key=lambda problem: order.index(problem["field"]))

    @classmethod
    def _problem(cls, field: str, error: ErrorDetails) -> FieldProblem:
        if error["type"] == "extra_forbidden":
            names = list(cls.model_fields)
            nearest = _nearest(field, names)
            hint = f"; did you mean `{nearest}`?" if nearest else ""
            return {"field": field, "message": f"{cls.__name__} has no such field{hint}", "allowed": names}
        message = "is required" if error["type"] == "missing" else error["msg"]
        return {"field": field, "message": message, "allowed": cls._allowed(field)}

    @classmethod
    def _allowed(cls, field: str) -> dict[str, Any]:
        schema: dict[str, Any] = cls.model_json_schema()["properties"][field]
        return {key: value for key, value in schema.items() if key not in {"title", "default", "description"}}


def _nearest(name: str, known: list[str]) -> str | None:
    folded = name.lower().replace("-", "_")
    starts_alike = [other for other in known if other.startswith(folded) or folded.startswith(other)]
    alike = difflib.get_close_matches(folded, known, n=1, cutoff=0.6) or starts_alike
    return alike[0] if alike else None
