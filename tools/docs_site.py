"""Build the documentation as a site with search and `llms.txt`, into `build/site`.

python -m tools.docs_site            # needs the extra `docs`: mkdocs-material and mkdocstrings

The pages of `docs/` and those of the repository's root are copied into `build/docs`, since a site has one folder. Links
that leave the folder lead to the copies; files that are no pages are named by their path. Pages of the API of `engine`
and `darkroom.client` are made from their docstrings.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
PAGES, SITE = BUILD / "docs", BUILD / "site"
CONFIGURATION = ROOT / "mkdocs.yml"
NEEDED = ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers.python")
OVERVIEW = "overview.md"  # README.md would be an index of its folder
BESIDE = {
    "README.md": OVERVIEW,
    **{
        name: name
        for name in ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "demo/README.md", "demo/demo_model.jpg")
    },
}
REFERENCE = {
    "engine": "# API of the engine\n\n`from darkroom.engine import Engine`: what a program of your own may use.\n\n"
    "::: darkroom.engine\n",
    "client": "# API of the client\n\n`from darkroom.client import Client`: needs httpx and httpx-sse alone.\n\n"
    "::: darkroom.client\n",
}
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


def missing_packages() -> list[str]:
    """Return the modules that a build needs and this environment lacks."""
    return [name for name in NEEDED if not _is_installed(name)]


def _is_installed(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def prepare(pages: Path) -> None:
    """Write the pages of the site into a new folder."""
    shutil.rmtree(pages, ignore_errors=True)
    shutil.copytree(ROOT / "docs", pages)
    shutil.copytree(ROOT / "examples", pages / "examples")
    for name, place in BESIDE.items():
        (pages / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, pages / place)
    for page in pages.rglob("*.md"):
        page.write_text(with_links_inside(page.read_text("utf-8"), _origin(page, pages), page, pages), "utf-8")
    (pages / "reference").mkdir()
    for name, text in REFERENCE.items():
        (pages / "reference" / f"{name}.md").write_text(text, "utf-8")


def with_links_inside(text: str, origin: Path, page: Path, pages: Path) -> str:
    """Return the text of a page with links that hold in the site's folder; `origin` is the page in the repository."""

    def moved(match: re.Match[str]) -> str:
        image, label, link = match.groups()
        file, mark, anchor = link.partition("#")
        if not file or "://" in link:
            return match[0]
        target = Path(os.path.normpath(origin.parent / file))
        inside = _place_in_site(target, pages)
        if inside is None:
            return f"`{target.relative_to(ROOT)}`"
        return f"{image}[{label}]({os.path.relpath(inside, page.parent)}{mark}{anchor})"

    parts = FENCE.split(text)
    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in parts)


def _origin(page: Path, pages: Path) -> Path:
    """Return the file of the repository that a page of the site was copied from."""
    place = str(page.relative_to(pages))
    name = next((name for name, copied in BESIDE.items() if copied == place), place)
    return ROOT / name if name in BESIDE or name.startswith("examples/") else ROOT / "docs" / place


def _place_in_site(target: Path, pages: Path) -> Path | None:
    """Return the path in the site of a file of the repository, or None for one that is not part of it."""
    name = str(target.relative_to(ROOT))
    place = pages / BESIDE.get(name, name.removeprefix("docs/"))
    if place.is_dir() and (place / "README.md").is_file():
        return place / "README.md"
    return place if place.is_file() else None


def write_llms(pages: Path, site: Path) -> None:
    """Write `llms.txt`: each page with its title and first sentence, and the pages themselves as Markdown beside it."""
    settings = yaml.load(CONFIGURATION.read_text("utf-8"), Loader=_WithoutTags)
    lines = [f"# {settings['site_name']}", "", f"> {settings['site_description']}"]
    for part in settings["nav"]:
        ((title, entries),) = part.items()
        lines += ["", f"## {title}", ""]
        for name in _pages_of(entries):
            text = (pages / name).read_text("utf-8")
            lines.append(f"- [{_title(text)}]({name}): {_first_sentence(text)}")
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(pages / name, site / name)
    (site / "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")


class _WithoutTags(yaml.SafeLoader):
    """Reads the configuration, whose tags name functions of Markdown extensions."""


_WithoutTags.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)


def _pages_of(entries: Any) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
    elif isinstance(entries, dict):
        for inner in entries.values():
            yield from _pages_of(inner)
    else:
        for entry in entries:
            yield from _pages_of(entry)


def _title(text: str) -> str:
    return text.partition("\n")[0].removeprefix("# ")


def _first_sentence(text: str) -> str:
    """Return the first sentence of a page, without links."""
    prose = next(
        (part for part in text.split("\n\n")[1:] if not part.startswith(("#", "|", "```", "!", "<", ":::"))), ""
    )
    plain = LINK.sub(lambda match: match[2], " ".join(prose.split()))
    return re.split(r"(?<=\.)\s", plain)[0]


def main() -> int:
    """Build the site; the exit code is that of mkdocs, or 2 where a package is missing."""
    if missing := missing_packages():
        print(f"missing: {', '.join(missing)}; ./docs.sh installs them")
        return 2
    prepare(PAGES)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "--config-file", str(CONFIGURATION)]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=False)
    if done.returncode == 0:
        write_llms(PAGES, SITE)
        print(f"{SITE.relative_to(ROOT)}/index.html")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
