"""Base of the sections of settings: frozen models whose fields name the environment variables that set them.

A field without a variable is not read from the environment: it belongs to a configuration that is derived from several
sections, or is a limit that no operator changes and that tests shorten. The description of a variable is the docstring
below its field. `tools/settings_table.py` reads it from the source: pydantic's `use_attribute_docstrings` would do so
at each start, which doubles the time to import the settings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_args

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic.fields import FieldInfo

from darkroom.worker.json.values import JsonObject

MIB = 1024 * 1024
GIB = 1024 * MIB

Item = TypeVar("Item")


class Section(BaseModel):
    """Settings of one part of the front, which receives this section alone."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_by_name=True,
        validate_by_alias=True,
        hide_input_in_errors=True,
    )


@dataclass(frozen=True, slots=True)
class Variable:
    """A setting: the attribute of a section, and the environment variables that set it, the preferred name first."""

    section: str
    attribute: str
    names: tuple[str, ...]
    field: FieldInfo

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def is_secret(self) -> bool:
        """True for one secret or several."""
        return self.field.annotation is SecretStr or SecretStr in get_args(self.field.annotation)


def env(*names: str) -> object:
    """Return the part of a field's annotation that names its environment variables, the preferred one first."""
    return Field(validation_alias=AliasChoices(*names))


@cache
def variables_of(settings: type[BaseModel]) -> tuple[Variable, ...]:
    """Return every variable of the sections of `settings`, in the order of declaration."""
    return tuple(
        Variable(name, attribute, tuple(str(choice) for choice in field.validation_alias.choices), field)
        for name, section in settings.model_fields.items()
        if isinstance(section.annotation, type) and issubclass(section.annotation, Section)
        for attribute, field in section.annotation.model_fields.items()
        if isinstance(field.validation_alias, AliasChoices)
    )


def by_section(settings: type[BaseModel], values: JsonObject) -> dict[str, dict[str, Any]]:
    """Return the values of variables as the constructor of `settings` takes them; other names are left out.

    Names are compared without case. Of several names of one setting the preferred one wins.
    """
    given = {name.upper(): value for name, value in values.items()}
    sections: dict[str, dict[str, Any]] = {}
    for variable in variables_of(settings):
        for name in variable.names:
            if name in given:
                sections.setdefault(variable.section, {})[variable.name] = given[name]
                break
    return sections


def _split_commas(value: object) -> object:
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _to_lower(value: object) -> object:
    return value.strip().lower() if isinstance(value, str) else value


def _check_address(value: str) -> str:
    if value and not re.match(r"https?://[^/?#\s]", value, re.IGNORECASE):
        raise ValueError("is not an http:// or https:// address")
    return value


def _check_addresses(value: tuple[str, ...]) -> tuple[str, ...]:
    for url in value:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"{url!r} is not an http:// or https:// address")
    return tuple(url.rstrip("/") for url in value)


CommaList = Annotated[tuple[Item, ...], BeforeValidator(_split_commas)]
LOWER = BeforeValidator(_to_lower)
"""Part of an annotation: the words of a choice may be written in capitals."""

Address = Annotated[str, AfterValidator(_check_address)]
Addresses = Annotated[CommaList[str], AfterValidator(_check_addresses)]
PositiveInt = Annotated[int, Field(gt=0)]
NaturalInt = Annotated[int, Field(ge=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]
Port = Annotated[int, Field(ge=0, le=65535)]
