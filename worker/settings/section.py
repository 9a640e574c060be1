"""Base of the sections of settings: frozen models whose fields name the environment variables that set them.

A field without a variable is not read from the environment: it belongs to a configuration that is derived from several
sections, or is a limit that no operator changes and that tests shorten. A section may have one setting for several
fields, its `whole`: `PROMPT_LIMITS=steps=100,batch=4`. The variables of these fields, which earlier versions had alone,
are read as well and win. The description of a variable is the docstring below its field. `tools/settings_table.py`
reads it from the source: pydantic's `use_attribute_docstrings` would do so at each start, which doubles the time to
import the settings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, SecretStr
from pydantic.fields import FieldInfo

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.json.values import JsonObject

MIB = 1024 * 1024
GIB = 1024 * MIB

Item = TypeVar("Item")


class Section(BaseModel):
    """Settings of one part of the front, which receives this section alone."""

    whole: ClassVar[str] = ""
    """Setting that has several of the fields, as `key=value` by commas. Empty: none."""

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
    part_of: str = ""
    """Setting that has this one within it; empty for one of its own."""

    key: str = ""
    """Name of this part in `part_of`; empty where the section splits that setting itself."""

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def is_secret(self) -> bool:
        """True for one secret or several."""
        return self.field.annotation is SecretStr or SecretStr in get_args(self.field.annotation)


def env(*names: str, key: str = "", part_of: str = "") -> Any:
    """Return the part of a field's annotation that names its environment variables, the preferred one first.

    `key` is the field's name in the `whole` of its section; `part_of` names another setting that may set it.
    """
    return Field(validation_alias=AliasChoices(*names), json_schema_extra={"key": key, "part_of": part_of})


@cache
def variables_of(settings: type[BaseModel]) -> tuple[Variable, ...]:
    """Return every variable of the sections of `settings`, in the order of declaration."""
    return tuple(
        _variable(name, section.annotation, attribute, field)
        for name, section in settings.model_fields.items()
        if isinstance(section.annotation, type) and issubclass(section.annotation, Section)
        for attribute, field in section.annotation.model_fields.items()
        if isinstance(field.validation_alias, AliasChoices)
    )


def _variable(section_name: str, section: type[Section], attribute: str, field: FieldInfo) -> Variable:
    assert isinstance(field.validation_alias, AliasChoices)
    extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
    key = str(extra.get("key", ""))
    part_of = section.whole if key else str(extra.get("part_of", ""))
    return Variable(section_name, attribute, tuple(map(str, field.validation_alias.choices)), field, part_of, key)


@cache
def settings_of(settings: type[BaseModel]) -> tuple[str, ...]:
    """Return the names of all settings, each by its preferred name, parts of another one left out."""
    names = (variable.part_of or variable.name for variable in variables_of(settings))
    return tuple(dict.fromkeys(names))


def by_section(settings: type[BaseModel], values: JsonObject) -> dict[str, dict[str, Any]]:
    """Return the values of variables as the constructor of `settings` takes them; other names are left out.

    Names are compared without case. Of several names of one setting the preferred one wins, and a name of its own over
    the setting that has it as a part. Raises SettingsInvalid for a setting of parts that does not parse.
    """
    given = {name.upper(): value for name, value in values.items()}
    sections: dict[str, dict[str, Any]] = {}
    for variable, value in _parts(settings, given):
        sections.setdefault(variable.section, {})[variable.name] = value
    for variable in variables_of(settings):
        for name in variable.names:
            if name in given:
                sections.setdefault(variable.section, {})[variable.name] = given[name]
                break
    return sections


def _parts(settings: type[BaseModel], given: JsonObject) -> Iterator[tuple[Variable, str]]:
    """Yield each variable that a setting of parts sets, with its value."""
    wholes: dict[str, dict[str, Variable]] = {}
    for variable in variables_of(settings):
        if variable.key and variable.part_of in given:
            wholes.setdefault(variable.part_of, {})[variable.key] = variable
    for whole, variables in wholes.items():
        for part in filter(str.strip, str(given[whole]).split(",")):
            key, sign, value = (word.strip() for word in part.partition("="))
            if key not in variables or not value:
                expected = ", ".join(f"{name}=VALUE" for name in variables)
                raise SettingsInvalid(f"{whole}: got {part.strip()!r}, expected {expected} by commas")
            yield variables[key], value


def split_commas(value: Any) -> Any:
    """Return the words of a comma list as a tuple; any other value as it is."""
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


CommaList = Annotated[tuple[Item, ...], BeforeValidator(split_commas)]
LOWER = BeforeValidator(_to_lower)
"""Part of an annotation: the words of a choice may be written in capitals."""

Address = Annotated[str, AfterValidator(_check_address)]
Addresses = Annotated[CommaList[str], AfterValidator(_check_addresses)]
PositiveInt = Annotated[int, Field(gt=0)]
NaturalInt = Annotated[int, Field(ge=0)]
PositiveSeconds = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]
Port = Annotated[int, Field(ge=0, le=65535)]
