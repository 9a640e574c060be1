"""Python packages that packs import without asking for them, because every ComfyUI has them.

ComfyUI's own `requirements.txt` (0.33.0) brings them; this engine needs only some. Which of them a pack imports is read
from its source, without running it.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

# Of ComfyUI's requirements, the distribution by the name under which it is imported.
DISTRIBUTIONS = {
    "OpenGL": "PyOpenGL", "PIL": "Pillow", "aiohttp": "aiohttp", "alembic": "alembic", "av": "av", "blake3": "blake3",
    "einops": "einops", "filelock": "filelock", "kornia": "kornia", "numpy": "numpy", "psutil": "psutil",
    "pydantic": "pydantic", "pydantic_settings": "pydantic-settings", "requests": "requests",
    "safetensors": "safetensors", "scipy": "scipy", "sentencepiece": "sentencepiece", "simpleeval": "simpleeval",
    "spandrel": "spandrel", "sqlalchemy": "SQLAlchemy", "tokenizers": "tokenizers", "torchaudio": "torchaudio",
    "torchsde": "torchsde", "torchvision": "torchvision", "tqdm": "tqdm", "transformers": "transformers",
    "yaml": "pyyaml", "yarl": "yarl",
}  # fmt: skip
MAX_FILE_BYTES = 4 << 20
_REQUIRED = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)", re.MULTILINE)

Finder = Callable[[str], bool]


def is_importable(name: str) -> bool:
    """Return True where a module of that name can be imported; it is not."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


def assumed_packages(pack: Path, is_there: Finder = is_importable) -> list[str]:
    """Return the distributions of ComfyUI's that a pack imports, without naming them, and that are not here."""
    named = _named_by(pack)
    found = {name for tree in _sources(pack) for name in _imports(ast.walk(tree))}
    wanted = (DISTRIBUTIONS[name] for name in sorted(found & DISTRIBUTIONS.keys()) if not is_there(name))
    return [name for name in wanted if _plain(name) not in named]


def unmet_imports(pack: Path, served: Iterable[str], is_there: Finder = is_importable) -> list[str]:
    """Return the modules that a pack imports in any case and that nothing here has.

    `served` are the names that ComfyUI makes importable. Imports in functions and in `try` may be for other cases.
    """
    own = {path.stem for path in pack.rglob("*.py")} | {path.name for path in pack.rglob("*") if path.is_dir()}
    known = {*served, *own, *sys.stdlib_module_names, "__future__", "custom_nodes"}
    found = {name for tree in _sources(pack) for name in _imports(tree.body)}
    return sorted(name for name in found - known if not is_there(name))


def _named_by(pack: Path) -> set[str]:
    file = pack / "requirements.txt"
    text = file.read_text("utf-8-sig", errors="replace") if file.is_file() else ""
    return {_plain(name) for name in _REQUIRED.findall(text)}


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _sources(pack: Path) -> Iterator[ast.Module]:
    """Yield the parsed sources of a pack, those that Python cannot parse left out."""
    for path in sorted([pack] if pack.is_file() else pack.rglob("*.py")):
        inside = path.relative_to(pack).parts if path != pack else ()
        if any(part.startswith(".") or part in ("tests", "test") for part in inside):
            continue
        if path.stat().st_size > MAX_FILE_BYTES:
            continue
        try:
            yield ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue  # the engine's import tells it


def _imports(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the top-level names of modules that these statements import."""
    for item in nodes:
        if isinstance(item, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in item.names)
        elif isinstance(item, ast.ImportFrom) and not item.level and item.module:
            yield item.module.partition(".")[0]
