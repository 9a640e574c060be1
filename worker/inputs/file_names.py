"""Detection of file names in a prompt that refer to another job's files, before the engine receives it. Pure.

A job may name its own files: those that came with the request, and those that the operator put into the engine's input
folder. Not its own are names in the output and temporary folders (`x.png [output]`), names of files from other requests
(`darkroom/...`, `upload:...`), and names that leave the input folder.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator, Mapping

from darkroom.contract.graph.facts import Facts
from darkroom.worker.errors import Problem
from darkroom.worker.inputs.references import UPLOAD_PREFIX, media_of, source_of
from darkroom.worker.json.values import JsonObject, object_at

FETCHED_FOLDER = "darkroom"  # in the engine's input folder: files from requests
FOREIGN_FILE = "foreign_file"
ALLOWED = (
    "a file of the request itself (https://, s3://, data:, base64 or a part of the body), or the name of a file in the "
    "engine's input folder outside darkroom/; SHARED_FILES=true opens the other folders"
)
FOLDER_INPUTS = frozenset({"folder", "directory", "folder_name", "directory_name", "folder_path"})

_ANNOTATED = re.compile(r"(?P<name>.*)\[(?P<kind>input|output|temp)\]", re.DOTALL)
_FETCHED_NAME = re.compile(rf"(?:^|[/\\]){FETCHED_FOLDER}[/\\]+[0-9a-f]{{64}}\.", re.IGNORECASE)
_FILE_ENDING = re.compile(r"\.\w{1,12}\W?$")
_DRIVE = re.compile(r"[A-Za-z]:")


def find_foreign_names(
    prompt: JsonObject,
    object_info: JsonObject,
    parts: Collection[str] = (),
    *,
    engine_checks_links: bool = False,
) -> list[Problem]:
    """Find every input that names another job's file.

    `parts` are the names of files that came with the request. A name that arrives through a link is known only at run
    time. `engine_checks_links` means that the engine checks it then; otherwise such a link is refused.
    """
    facts = Facts(object_info)
    return [
        Problem(
            f"{input_name}: {what}; got {_shown(value)}, expected {ALLOWED}",
            field=input_name,
            node_id=str(node_id),
            class_type=class_type,
            type=FOREIGN_FILE,
            allowed=ALLOWED,
        )
        for node_id, node in prompt.items()
        for class_type, input_name, value in _inputs_of(node)
        if not isinstance(value, str) or value not in parts
        if (what := _foreign(value, class_type, input_name, object_info, facts, engine_checks_links)) is not None
    ]


def _inputs_of(node: object) -> Iterator[tuple[str, str, str | list[object]]]:
    for name, value in object_at(node, "inputs").items():
        if isinstance(value, (str, list)):
            yield str(object_at(node).get("class_type")), str(name), value


def _foreign(
    value: str | list[object],
    class_type: str,
    input_name: str,
    object_info: JsonObject,
    facts: Facts,
    engine_checks_links: bool,
) -> str | None:
    """Return the problem of a value, or None."""
    takes_file = media_of(object_info, facts, class_type, input_name) is not None
    if isinstance(value, list):
        is_blind = takes_file and not engine_checks_links and len(value) == 2 and isinstance(value[0], str)
        return "a link brings the file's name, which cannot be checked" if is_blind else None
    if takes_file:
        return _foreign_name(value)
    config = _config_of(object_info, class_type, input_name)
    if config is None:
        return None
    kind, options = config
    if isinstance(kind, list) or kind == "COMBO":
        return _foreign_choice(value, input_name)
    if kind == "STRING" and not options.get("multiline"):
        return _foreign_text(value)
    return None


def _foreign_name(value: str) -> str | None:
    """Return the problem of a value of an input that takes a file, or None."""
    if value.startswith(UPLOAD_PREFIX):
        return "a file that another request has sent, send it again with this one"
    if source_of(value) is not None:
        return None
    annotated = _ANNOTATED.fullmatch(value)
    if annotated is not None and annotated["kind"] != "input":
        return f"a file of the {annotated['kind']} folder, which all jobs share"
    parts = parts_of(value if annotated is None else annotated["name"])
    if parts is None:
        return "a name that leads out of the input folder"
    return (
        "a file that another request has sent, send it again with this one"
        if parts and parts[0] == FETCHED_FOLDER
        else None
    )


def _foreign_choice(value: str, input_name: str) -> str | None:
    """Return the problem of a value of a choice list, or None.

    Packs list files, and folders, without declaring them as such.
    """
    annotated = _ANNOTATED.fullmatch(value)
    if annotated is not None and annotated["kind"] != "input":
        return f"a file of the {annotated['kind']} folder, which all jobs share"
    if _FETCHED_NAME.search(value):
        return "a file that another request has sent, send it again with this one"
    if input_name in FOLDER_INPUTS and (parts_of(value) or [""])[0] == FETCHED_FOLDER:
        return "the folder of files that requests have sent"
    return None


def _foreign_text(value: str) -> str | None:
    """Return the problem of a short text that a pack may use as a file name, or None.

    Such a text has a file extension or names a fetched file.
    """
    annotated = _ANNOTATED.fullmatch(value)
    if annotated is not None and annotated["kind"] != "input" and _FILE_ENDING.search(annotated["name"]):
        return f"a file of the {annotated['kind']} folder, which all jobs share"
    return "a file that another request has sent, send it again with this one" if _FETCHED_NAME.search(value) else None


def parts_of(name: str) -> list[str] | None:
    """Split a name into its folders and its file, as every operating system would; None if it leaves its folder.

    >>> parts_of("a/../Darkroom//x.png"), parts_of("../x.png")
    (['darkroom', 'x.png'], None)
    """
    path = posixpath.normpath(name.replace("\\", "/"))
    if path.startswith(("/", "../")) or path == ".." or _DRIVE.match(path):
        return None
    return [part.rstrip(". ").casefold() for part in path.split("/") if part != "."]


def _config_of(object_info: JsonObject, class_type: str, input_name: str) -> tuple[object, Mapping[str, object]] | None:
    """Return the declared type of an input and its options."""
    for section in ("required", "optional"):
        config = object_at(object_info, class_type, "input", section).get(input_name)
        if isinstance(config, list | tuple) and config:
            return config[0], config[1] if len(config) > 1 and isinstance(config[1], Mapping) else {}
    return None


def _shown(value: str | list[object]) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
