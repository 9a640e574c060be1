"""Prints where the worker will keep its files, where it will listen, what certificate it will show (empty: none) and
where it puts the key for this machine's commands, as the settings have it: four lines.

Exit code 2, and the variable's name, when a setting does not parse.
"""

from __future__ import annotations

import sys

from darkroom.worker.errors import SettingsInvalid
from darkroom.worker.guard.identity.may_listen import check_may_listen
from darkroom.worker.settings.environment import load_settings


def main() -> int:
    try:
        settings = load_settings().settings
        check_may_listen(settings)
    except SettingsInvalid as error:
        print(f"Settings: {error.message}", file=sys.stderr)
        return 2
    if not settings.listener.port:
        print("Settings: WORKER_PORT: 0 leaves the port to chance; run.sh needs a certain one", file=sys.stderr)
        return 2
    tls = settings.tls_files()
    print(settings.folders.base.absolute())
    print(settings.local_url)
    print("" if tls is None else tls.certificate.absolute())
    print(settings.own_key_path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
