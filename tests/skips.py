"""Skips that continuous integration accepts: what no machine of it can have. Any other skip is a failure there.

A test that is skipped breaks unseen. So with `CI=true` a missing program or library fails the test that needs it:
`.ci/run` installs what the tests need, and a new need goes into `tests/system_packages.txt`.
"""

from __future__ import annotations

import os
import re
from typing import Final

ALLOWED: Final[tuple[tuple[str, str], ...]] = (
    (r"needs a CUDA device", "there is no GPU"),
    (r"this processor multiplies no float8", "the processor's instructions"),
    (r"this machine has no transparent huge pages", "the kernel's configuration"),
    (r"the file system has no direct reading", "the file system"),
    (r"Ray Serve is an extra|needs the extra `readers`|opencv-python-headless", "large extras that few users install"),
    (r"(VASTAI_PYTHON|COMPARE_COMFYUI_URL|ADVISORIES|NODE_PACKS) names no ", "files that a developer names"),
    (r"there is no \.\./shared\b", "files beside the repository, which not every checkout has"),
    (r"kubectl is not installed", "no Debian package that knows components"),
    (r"openapi-python-client cannot be fetched", "fetched by a slow test alone"),
)


def is_ci() -> bool:
    """Return True where continuous integration runs the tests."""
    return os.environ.get("CI") == "true"


def is_allowed(reason: str) -> bool:
    """Return True if a skip for this reason is accepted in continuous integration."""
    return any(re.search(pattern, reason) for pattern, _ in ALLOWED)
