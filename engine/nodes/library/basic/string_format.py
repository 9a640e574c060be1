"""The node that fills values into a text by Python's format syntax, of which a caller gets a bounded part.

Fields name a value and may index it (`{a[0]}`, `{a[key]}`), convert it (`!r`) and format it (`:>8.2f`), as `str.format`
does. Attributes are refused: they would reach into the engine's own objects. So are widths and precisions without end.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any

from darkroom.engine.nodes.base import NodeContext, NodeEnvironment
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.basic.patterns import MAX_TEXT_CHARACTERS, TextTooLong, joined
from darkroom.engine.nodes.library.basic.value_texts import check_length
from darkroom.engine.nodes.markers import Socket
from darkroom.engine.nodes.parameters import Field, Growing
from darkroom.engine.nodes.sockets import STRING
from darkroom.engine.nodes.widgets import Text

MAX_WIDTH = 10_000
MAX_INDEXES = 10
NAMES = tuple(string.ascii_lowercase)
CONVERSIONS: dict[str | None, Callable[[Any], str]] = {None: str, "s": str, "r": repr, "a": ascii}
FIELD_NAME = re.compile(r"([^.\[\]]*)((?:\[[^\]]+\])*)")
INDEX = re.compile(r"\[([^\]]+)\]")


class BadFormat(ValueError):
    """A text whose fields cannot be filled."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"f_string: {problem}")


def _complaint(environment: NodeEnvironment, f_string: str) -> str | None:
    """Return the fault of a text that shows without its values, or None."""
    try:
        for _, field, spec, conversion in _parsed(f_string):
            if field is not None:
                _path_of(field)
                _check_conversion(conversion)
                _check_spec_names(spec or "")
    except (BadFormat, TextTooLong) as error:
        return str(error)
    return None


@node("StringFormat", display_name="Format Text", category="text", python_module="comfy_extras.nodes_string",
      check=_complaint, comfyui_version="0.33.0")  # fmt: skip
def string_format(
    context: NodeContext,
    *,
    values: Annotated[Mapping[str, object], Growing(item=Field("value", Socket("*")), names=NAMES, min=0)],
    f_string: Annotated[str, Text(multiline=True)] = "{a}",
) -> STRING:
    """Fill the values `a` to `z` into a text by Python's format syntax, without attributes.

    Raises BadFormat, a ValueError, and TextTooLong.
    """
    return filled(f_string, values)


def filled(text: str, values: Mapping[str, object]) -> str:
    """Fill values into the fields of a text. Raises BadFormat and TextTooLong."""
    return joined(_pieces(text, values))


def _pieces(text: str, values: Mapping[str, object]) -> Iterator[str]:
    num_shown = 0
    for literal, field, spec, conversion in _parsed(text):
        yield literal
        if field is not None:
            filled_spec = joined(_spec_pieces(spec or "", values))
            shown = _shown(_value_of(field, values), conversion, filled_spec)
            num_shown += len(shown) if isinstance(shown, str) else 0
            if num_shown > MAX_TEXT_CHARACTERS:  # a precision may leave nothing of them, but they were made
                raise TextTooLong("the values of all fields", MAX_TEXT_CHARACTERS)
            yield _formatted(shown, filled_spec)


def _spec_pieces(spec: str, values: Mapping[str, object]) -> Iterator[str]:
    """Yield the parts of a field's format; a field within it is a value, as a width of another input."""
    for literal, field, inner_spec, conversion in _parsed(spec):
        yield literal
        if field is not None:
            if inner_spec and "{" in inner_spec:
                raise BadFormat("fields nested too deeply; expected a field within a field's format at most")
            yield _formatted(_shown(_value_of(field, values), conversion, inner_spec or ""), inner_spec or "")


def _parsed(text: str) -> Iterator[tuple[str, str | None, str | None, str | None]]:
    if len(text) > MAX_TEXT_CHARACTERS:
        raise TextTooLong("f_string", MAX_TEXT_CHARACTERS)
    try:
        yield from string.Formatter().parse(text)
    except ValueError as error:
        raise BadFormat(f"no format text: {error}; a brace of the text itself is written twice") from None


def _path_of(field: str) -> tuple[str, list[str]]:
    """Return the name that a field starts with and the indexes that follow it."""
    found = FIELD_NAME.fullmatch(field)
    if found is None:
        raise BadFormat(f"field {field[:100]!r} is not allowed; expected a name such as a, or a[0]")
    indexes = INDEX.findall(found[2])
    if len(indexes) > MAX_INDEXES:
        raise BadFormat(f"field {field[:100]!r} has {len(indexes)} indexes; expected at most {MAX_INDEXES}")
    return found[1], indexes


def _value_of(field: str, values: Mapping[str, object]) -> object:
    name, indexes = _path_of(field)
    if name not in values:
        offered = ", ".join(values) or "none, since no value is connected"
        raise BadFormat(f"no value {name[:100]!r}; expected one of {offered}")
    value = values[name]
    for index in indexes:
        if not isinstance(value, (str, list, tuple, dict)):
            raise BadFormat(f"field {field[:100]!r} indexes {type(value).__name__}; expected a list or a dictionary")
        key = int(index) if index.isdecimal() and len(index) < len(str(MAX_TEXT_CHARACTERS)) else index
        try:
            value = value[key]  # type: ignore[index]
        except (LookupError, TypeError):
            raise BadFormat(f"field {field[:100]!r} finds nothing at {index[:100]!r}") from None
    return value


def _check_conversion(conversion: str | None) -> None:
    if conversion not in CONVERSIONS:
        raise BadFormat(f"conversion {conversion!r} is unknown; expected s, r or a")


def _check_spec_names(spec: str) -> None:
    for literal, field, _, conversion in _parsed(spec):
        _check_widths(literal)
        if field is not None:
            _path_of(field)
            _check_conversion(conversion)


def _check_widths(spec: str) -> None:
    for digits in re.findall(r"\d+", spec):
        if len(digits) > len(str(MAX_WIDTH)) or int(digits) > MAX_WIDTH:
            raise BadFormat(f"width {digits[:20]} is too large; expected at most {MAX_WIDTH}")


def _shown(value: object, conversion: str | None, spec: str) -> str | int | float:
    """Return a value as its field converts it, what is no number and no text as text. Raises TextTooLong."""
    _check_conversion(conversion)
    if conversion is None and isinstance(value, (str, int, float)):
        return value
    if conversion is None and spec:
        raise BadFormat(f"format {spec[:100]!r} is for numbers and texts; got {type(value).__name__}")
    check_length(value)
    return CONVERSIONS[conversion](value)


def _formatted(shown: str | int | float, spec: str) -> str:
    _check_widths(spec)
    try:
        return format(shown, spec)
    except (ValueError, OverflowError) as error:
        raise BadFormat(f"format {spec[:100]!r} does not fit {type(shown).__name__}: {error}") from None


NODES = (string_format,)
