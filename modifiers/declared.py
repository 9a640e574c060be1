"""Declared modifiers: built from a workflow file and a small TOML or JSON declaration of its parameters.

    description = "A poster in our house style"
    workflow = "poster.json"                # in ComfyUI's API format, beside this file

    [parameters.subject]
    into = "6.text"                         # node id, a dot, the input; a list fills several
    type = "text"
    required = true

    [parameters.steps]
    into = "3.steps"
    type = "integer"
    minimum = 1
    maximum = 50

A parameter that is neither required nor has a `default` keeps the workflow's value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, create_model, model_validator

from darkroom.modifiers.modifier import RANDOM_INT, Into, ModificationsRejected, Modifier, Name, Seed, no_boolean


class BadDeclaration(Exception):
    """Error in a declaration, or in the workflow it names; the message gives the place and the reason."""


TYPES: Mapping[str, Any] = {
    "text": str,
    "boolean": Annotated[bool, Field(strict=True)],
    "seed": Seed,
    "file": Name,  # an image, a model file: a name, or an address where the node takes an image
}


class Parameter(BaseModel):
    model_config = ConfigDict(extra="forbid")

    into: str | list[str]
    type: Literal["text", "integer", "number", "boolean", "choice", "seed", "file"]
    description: str = ""
    required: bool = False
    default: Any = None
    minimum: float | None = None
    maximum: float | None = None
    choices: Annotated[list[str | int | float], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _fits_its_type(self) -> Parameter:
        if (self.choices is not None) != (self.type == "choice"):
            raise ValueError("`choices` go with the type `choice`, and only with it")
        if self.type not in ("integer", "number") and (self.minimum is not None or self.maximum is not None):
            raise ValueError("`minimum` and `maximum` go with the types `integer` and `number`")
        if self.required and self.default is not None:
            raise ValueError("a parameter that is required has no default")
        return self

    def places(self) -> tuple[Into, ...]:
        return tuple(_place(text) for text in ([self.into] if isinstance(self.into, str) else self.into))

    def annotation(self) -> Any:
        """Return the pydantic type of the field."""
        return Annotated[self._plain(), *self.places(), Field(description=self.description)]

    def _plain(self) -> Any:
        if self.choices is not None:
            return Literal[tuple(self.choices)]
        if self.type == "integer":
            return Annotated[int, Field(ge=_whole(self.minimum), le=_whole(self.maximum)), BeforeValidator(no_boolean)]
        if self.type == "number":
            bounds = Field(ge=self.minimum, le=self.maximum, allow_inf_nan=False)
            return Annotated[float, bounds, BeforeValidator(no_boolean)]
        return TYPES[self.type]


class Declaration(BaseModel):
    model_config = ConfigDict(extra="forbid")

    workflow: str
    name: Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]{0,63}$")] | None = None
    description: str = ""
    parameters: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,63}$")], Parameter] = Field(default_factory=dict)
    example: dict[str, Any] = Field(default_factory=dict)


def parse_declaration(raw: Mapping[str, Any]) -> Declaration:
    """Parse a declaration. Raises BadDeclaration with every problem of the form."""
    try:
        return Declaration.model_validate(raw)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, entry['loc'])) or 'declaration'}: {entry['msg'].removeprefix('Value error, ')}"
            for entry in error.errors(include_url=False, include_input=False)
        ]
        raise BadDeclaration("; ".join(problems)) from None


def declared_modifier(declaration: Declaration, name: str, workflow: Any) -> type[Modifier]:
    """Build the modifier class. Raises BadDeclaration when the workflow is invalid or lacks a place that is named."""
    nodes = check_workflow(workflow)
    fields: dict[str, Any] = {}
    for field, parameter in declaration.parameters.items():
        values = [_value_at(nodes, place, field) for place in parameter.places()]
        if parameter.required:
            fields[field] = (parameter.annotation(), ...)
        else:
            default = parameter.default if parameter.default is not None else values[0]
            fields[field] = (parameter.annotation(), RANDOM_INT if parameter.type == "seed" else default)
    made = create_model(name, __base__=Modifier, __doc__=declaration.description, **fields)
    made.workflow_file, made.example = declaration.workflow, declaration.example
    _check_defaults(made)
    return made


def check_workflow(workflow: Any) -> dict[str, Any]:
    """Return a workflow in ComfyUI's API format. Raises BadDeclaration for anything else."""
    if isinstance(workflow, dict) and isinstance(workflow.get("nodes"), list):
        raise BadDeclaration("the workflow is a drawing of the web front end; export it in the API format")
    is_prompt = isinstance(workflow, dict) and all(
        isinstance(node, dict) and isinstance(node.get("class_type"), str) and isinstance(node.get("inputs"), dict)
        for node in workflow.values()
    )
    if not is_prompt or not workflow:
        raise BadDeclaration("the workflow is not an object of nodes with class_type and inputs")
    nodes: dict[str, Any] = workflow
    return nodes


def _whole(bound: float | None) -> int | None:
    return None if bound is None else round(bound)


def _place(text: str) -> Into:
    node_id, dot, input_name = text.partition(".")
    if not dot or not node_id or not input_name:
        raise BadDeclaration(f"`into` is a node id, a dot and an input, like 6.text; not {text!r}")
    return Into(node_id, input_name)


def _value_at(nodes: Mapping[str, Any], place: Into, field: str) -> Any:
    node = nodes.get(place.node_id)
    if node is None:
        raise BadDeclaration(f"{field}: the workflow has no node {place.node_id!r}; it has {', '.join(nodes)}")
    inputs = node["inputs"]
    if place.input_name not in inputs:
        known = ", ".join(inputs)
        raise BadDeclaration(f"{field}: node {place.node_id} has no input {place.input_name!r}; it has {known}")
    value = inputs[place.input_name]
    if isinstance(value, list):
        raise BadDeclaration(f"{field}: {place.input_name!r} of node {place.node_id} comes from another node")
    return value


def _check_defaults(made: type[Modifier]) -> None:
    """Check that each default is within its own range, at load time instead of at the first request that uses it."""
    defaults = {name: field.default for name, field in made.model_fields.items() if not field.is_required()}
    stand_ins = {name: None for name, field in made.model_fields.items() if field.is_required()}
    try:
        made.parse({**stand_ins, **defaults})
    except ModificationsRejected as error:
        wrong = [
            f"{problem['field']}: {problem['message']}" for problem in error.problems if problem["field"] in defaults
        ]
        if wrong:
            raise BadDeclaration(f"a default is out of its range: {'; '.join(wrong)}") from None
