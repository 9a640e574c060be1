"""Name and version of the installed distribution, and the command that installs the packages of one of its extras."""

from __future__ import annotations

import re
import shlex
import sys
from importlib import metadata

DISTRIBUTION = "darkroom-worker"  # `darkroom` on PyPI belongs to another project; the import and the command keep it
_OF_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")


def installed_version() -> str | None:
    """Return the version of the installed distribution; None for source code that is not installed."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return None


def install_command(extra: str) -> str:
    """Return the command that installs the packages of an extra into the environment of this process.

    It names the packages, not the distribution: no index has that, and what has its name there may be anybody's.
    """
    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return f"pip install -c constraints.txt -e '.[{extra}]'"
    packages = [_without_marker(line) for line in requirements if _extra_of(line) == extra]
    if not packages:
        raise ValueError(f"extra: unknown; got {extra!r}")
    return f"{shlex.quote(sys.executable)} -m pip install {shlex.join(packages)}"


def _extra_of(requirement: str) -> str | None:
    found = _OF_EXTRA.search(requirement.partition(";")[2])
    return None if found is None else found[1]


def _without_marker(requirement: str) -> str:
    return requirement.partition(";")[0].strip()
