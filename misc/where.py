"""Prints where the worker will keep its files and where it will listen, as the settings have it: two lines.

Exit code 2, and the variable's name, when a setting does not parse.
"""

from __future__ import annotations

import sys

from worker.errors import SettingsInvalid
from worker.settings import load_settings

EVERYWHERE = {"0.0.0.0", "::"}


def main() -> int:
    try:
        settings = load_settings().settings
    except SettingsInvalid as error:
        print(f"Settings: {error.message}", file=sys.stderr)
        return 2
    if not settings.worker_port:
        print("Settings: WORKER_PORT: 0 leaves the port to chance; run.sh needs a certain one", file=sys.stderr)
        return 2
    host = "127.0.0.1" if settings.worker_host in EVERYWHERE else settings.worker_host
    print(settings.base_directory.absolute())
    print(f"http://{host}:{settings.worker_port}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
