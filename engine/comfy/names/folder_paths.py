"""`folder_paths`: file locations, from the engine's model folders and its input, output and temporary folders."""

from __future__ import annotations

import mimetypes
import os
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from darkroom.engine.comfy.folder_table import FolderTable
from darkroom.engine.comfy.host import HOST
from darkroom.engine.comfy.missing_symbol import not_supported
from darkroom.engine.models.files.file_names import FileNames
from darkroom.engine.models.files.folders import WEIGHT_ENDINGS
from darkroom.engine.nodes.running_call import running_context
from darkroom.engine.runtime.outputs import fill_placeholders, highest_number, inside

supported_pt_extensions: set[str] = set(WEIGHT_ENDINGS)
folder_names_and_paths = FolderTable()


def __getattr__(name: str) -> object:
    """Return a folder's path at this moment."""
    engine = HOST.get().engine
    folders = {
        "base_path": engine.settings.base_path,
        "models_dir": engine.folders.models_directory,
        "input_directory": engine.files.input,
        "output_directory": engine.files.output,
        "temp_directory": engine.files.temp,
        "user_directory": engine.settings.base_path / "user",
    }
    if name in folders:
        return str(folders[name])
    raise AttributeError(name)


def get_input_directory() -> str:
    return str(HOST.get().engine.files.input)


def get_output_directory() -> str:
    return str(HOST.get().engine.files.output)


def get_temp_directory() -> str:
    return str(HOST.get().engine.files.temp)


def get_user_directory() -> str:
    return str(HOST.get().engine.settings.base_path / "user")


def set_output_directory(output_dir: str) -> None:
    raise not_supported("folder_paths.set_output_directory (use --output-directory)")


def set_temp_directory(temp_dir: str) -> None:
    raise not_supported("folder_paths.set_temp_directory (use --temp-directory)")


def set_input_directory(input_dir: str) -> None:
    raise not_supported("folder_paths.set_input_directory (use --input-directory)")


def get_directory_by_type(type_name: str) -> str | None:
    names: dict[str, Any] = {"output": "output", "temp": "temp", "input": "input"}
    kind = names.get(type_name)
    return None if kind is None else str(HOST.get().engine.files.of(kind))


def annotated_filepath(name: str) -> tuple[str, str | None]:
    """Split `"a.png [output]"` into its name and folder; the folder is None when the name has none."""
    for kind in ("output", "input", "temp"):
        if name.endswith(f"[{kind}]"):
            return name.removesuffix(f"[{kind}]").rstrip(), get_directory_by_type(kind)
    return name, None


def get_annotated_filepath(name: str, default_dir: str | None = None) -> str:
    """Return the path of a file.

    Raises ValueError when the name leaves its folder, or when the running prompt may not read the file.
    """
    bare, folder = annotated_filepath(name)
    path = inside(Path(folder or default_dir or get_input_directory()), bare)
    context = running_context()
    if context is not None and context.files is not None:
        context.files.check_own(path, name)
    return str(path)


def exists_annotated_filepath(name: str) -> bool:
    try:
        return os.path.exists(get_annotated_filepath(name))
    except ValueError:
        return False


def map_legacy(folder_name: str) -> str:
    return {"unet": "diffusion_models", "clip": "text_encoders"}.get(folder_name, folder_name)


def add_model_folder_path(folder_name: str, full_folder_path: str, is_default: bool = False) -> None:
    HOST.get().engine.folders.add_folder(folder_name, Path(full_folder_path), is_default=is_default)


def get_folder_paths(folder_name: str) -> list[str]:
    return [str(path) for path in HOST.get().engine.folders.roots(folder_name)]


def get_filename_list(folder_name: str) -> list[str]:
    """Return the files of a kind. An input that offers this list declares by it which folder's files it names."""
    return FileNames(HOST.get().engine.folders.names(folder_name), map_legacy(folder_name))


def get_full_path(folder_name: str, filename: str) -> str | None:
    """Return the file's path, or None when there is no file of that kind and name."""
    try:
        path = HOST.get().engine.folders.path(folder_name, os.path.relpath(os.path.join("/", filename), "/"))
    except KeyError:
        return None
    return None if path is None else str(path)


def get_full_path_or_raise(folder_name: str, filename: str) -> str:
    path = get_full_path(folder_name, filename)
    if path is None:
        raise FileNotFoundError(f"Model in folder '{folder_name}' with filename '{filename}' not found.")
    return path


def recursive_search(
    directory: str, excluded_dir_names: Collection[str] | None = None
) -> tuple[list[str], dict[str, float]]:
    """Return all files below a folder, relative to it, and every folder's modification time."""
    files: list[str] = []
    stamps: dict[str, float] = {}
    for folder, names, found in os.walk(directory, followlinks=True):
        names[:] = [name for name in names if name not in (excluded_dir_names or ())]
        stamps[folder] = os.path.getmtime(folder)
        files.extend(os.path.relpath(os.path.join(folder, name), directory) for name in found)
    return files, stamps


def filter_files_extensions(files: Iterable[str], extensions: Collection[str]) -> list[str]:
    """Return the files with these extensions, sorted; an empty collection accepts every file."""
    return sorted(name for name in files if not extensions or os.path.splitext(name)[-1].lower() in extensions)


def filter_files_content_types(files: Sequence[str], content_types: Sequence[str]) -> list[str]:
    """Return the files of a media type such as `image`, `video`, `audio` or `model`."""
    return [name for name in files if _content_type(name) in content_types]


def _content_type(name: str) -> str:
    if name.lower().endswith((".glb", ".gltf", ".obj", ".stl", ".fbx")):
        return "model"
    return (mimetypes.guess_type(name)[0] or "").partition("/")[0]


def get_input_subfolders() -> list[str]:
    root = get_input_directory()
    found = [os.path.relpath(os.path.join(folder, name), root) for folder, names, _ in os.walk(root) for name in names]
    return sorted(name.replace(os.sep, "/") for name in found)


def get_save_image_path(
    filename_prefix: str, output_dir: str, image_width: int = 0, image_height: int = 0
) -> tuple[str, str, int, str, str]:
    """Return folder (created), file name, next number, sub-folder and prefix.

    Raises ValueError when the prefix leaves the folder.
    """
    prefix = fill_placeholders(filename_prefix, image_width, image_height, time.localtime())
    subfolder = os.path.dirname(os.path.normpath(prefix))
    name = os.path.basename(os.path.normpath(prefix))
    folder = inside(Path(os.path.abspath(output_dir)), subfolder)
    folder.mkdir(parents=True, exist_ok=True)
    return str(folder), name, highest_number(os.listdir(folder), name) + 1, subfolder, prefix
