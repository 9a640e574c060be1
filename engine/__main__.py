"""`python -m engine`: the engine alone, with ComfyUI's flags; or one of its sub-commands.

python -m engine [flags]                     serve (see --help)
python -m engine random-checkpoint PATH      write a small SD1.5 checkpoint of random weights
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

RANDOM_CHECKPOINT = "random-checkpoint"


def main(arguments: Sequence[str]) -> int:
    """Imports stay inside: serving must not wait for torch, and a sub-command needs no server."""
    if arguments[:1] == [RANDOM_CHECKPOINT]:
        from engine.checkpoints import random_weights

        return random_weights.main(arguments[1:])
    return serve(arguments)


def serve(arguments: Sequence[str]) -> int:
    from engine.server import flags
    from engine.server.serve import log, run, set_up_logging

    command = flags.read_flags(arguments)
    set_up_logging(command.settings.verbose)
    if command.ignored:
        log.warning("flags without effect here: %s", " ".join(command.ignored))
    return run(command.settings, command.liveness_fd)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
