"""Nodes that change the captions of a data set, text by text.

Each returns a list of one text as one value, as ComfyUI's do, and takes such a list for its text: they may follow one
another.
"""

from __future__ import annotations

from typing import Annotated, Any

from darkroom.engine.nodes.base import NodeContext
from darkroom.engine.nodes.declaration import node
from darkroom.engine.nodes.library.basic.patterns import joined, replaced
from darkroom.engine.nodes.markers import Out, Socket
from darkroom.engine.nodes.widgets import Int, Text

VERSION = "0.33.0"
CATEGORY = "text"
MODULE = "comfy_extras.nodes_dataset"

Texts = Annotated[Any, Text(multiline=False)]
Line = Annotated[str, Text(multiline=False)]
Changed = Annotated[list[str], Socket("STRING"), Out("texts", is_list=None)]


def _text_of(texts: object) -> str:
    """Return the text of an input. Raises TypeError for what is no text and no list of one."""
    text = texts[0] if isinstance(texts, list) and len(texts) == 1 else texts
    if not isinstance(text, str):
        raise TypeError(f"texts: no text; got {type(texts).__name__}, expected a text or a list of one")
    return text


def _made(text: str) -> tuple[list[str]]:
    return ([text],)


@node("TextToLowercase", display_name="Convert Text to Lowercase (DEPRECATED)", category=CATEGORY,
      python_module=MODULE, deprecated=True, experimental=True, comfyui_version=VERSION)  # fmt: skip
def text_to_lowercase(context: NodeContext, *, texts: Texts) -> Changed:
    return _made(joined((_text_of(texts).lower(),)))  # type: ignore[return-value]


@node("TextToUppercase", display_name="Convert Text to Uppercase (DEPRECATED)", category=CATEGORY,
      python_module=MODULE, deprecated=True, experimental=True, comfyui_version=VERSION)  # fmt: skip
def text_to_uppercase(context: NodeContext, *, texts: Texts) -> Changed:
    return _made(joined((_text_of(texts).upper(),)))  # type: ignore[return-value]


@node("TruncateText", display_name="Truncate Text", category=CATEGORY, python_module=MODULE, experimental=True,
      comfyui_version=VERSION)  # fmt: skip
def truncate_text(
    context: NodeContext, *, texts: Texts, max_length: Annotated[int, Int(min=1, max=10000)] = 77
) -> Changed:
    """Cut a text after so many characters."""
    return _made(_text_of(texts)[:max_length])  # type: ignore[return-value]


@node("AddTextPrefix", display_name="Add Text Prefix (DEPRECATED)", category=CATEGORY, python_module=MODULE,
      deprecated=True, experimental=True, comfyui_version=VERSION)  # fmt: skip
def add_text_prefix(context: NodeContext, *, texts: Texts, prefix: Line = "") -> Changed:
    return _made(joined((prefix, _text_of(texts))))  # type: ignore[return-value]


@node("AddTextSuffix", display_name="Add Text Suffix (DEPRECATED)", category=CATEGORY, python_module=MODULE,
      deprecated=True, experimental=True, comfyui_version=VERSION)  # fmt: skip
def add_text_suffix(context: NodeContext, *, texts: Texts, suffix: Line = "") -> Changed:
    return _made(joined((_text_of(texts), suffix)))  # type: ignore[return-value]


@node("ReplaceText", display_name="Replace Text (DEPRECATED)", category=CATEGORY, python_module=MODULE,
      deprecated=True, experimental=True, comfyui_version=VERSION)  # fmt: skip
def replace_text(context: NodeContext, *, texts: Texts, find: Line = "", replace: Line = "") -> Changed:
    """Replace each occurrence of a text; an empty one is found between all characters."""
    return _made(replaced(_text_of(texts), find, replace))  # type: ignore[return-value]


@node("StripWhitespace", display_name="Strip Whitespace (DEPRECATED)", category=CATEGORY, python_module=MODULE,
      deprecated=True, experimental=True, comfyui_version=VERSION)  # fmt: skip
def strip_whitespace(context: NodeContext, *, texts: Texts) -> Changed:
    return _made(_text_of(texts).strip())  # type: ignore[return-value]


NODES = (
    text_to_lowercase,
    text_to_uppercase,
    truncate_text,
    add_text_prefix,
    add_text_suffix,
    replace_text,
    strip_whitespace,
)
