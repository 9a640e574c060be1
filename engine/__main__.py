"""`python -m darkroom.engine`: the engine without the worker, with ComfyUI's flags; or one of its sub-commands.

python -m darkroom.engine [flags]                     serve (see --help)
python -m darkroom.engine random-checkpoint PATH      write a small checkpoint of random weights
python -m darkroom.engine nodes list|check|install|sync|verify    custom nodes
python -m darkroom.engine media-facts FILE…           size, frames and duration of videos and audio
python -m darkroom.engine model-faults                what is wrong with model files by their headers
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from darkroom.engine.settings import EngineSettings

RANDOM_CHECKPOINT = "random-checkpoint"
NODES = "nodes"
MEDIA_FACTS = "media-facts"
MODEL_FAULTS = "model-faults"
TRIAL = "trial"  # of one pack, in a child process of the engine
MOST_DEVICES = 32  # in one machine, as ComfyUI counts them


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit code.

    Imports stay inside: serving must not wait for torch, and a sub-command needs no server.
    """
    if arguments[:1] == [RANDOM_CHECKPOINT]:
        return write_checkpoint(arguments[1:])
    if arguments[:2] == [NODES, TRIAL]:
        gc.disable()  # nothing of what is imported is garbage, and an engine waits for this process
        from darkroom.engine.pack_trial import main as trial

        gc.enable()
        return trial(arguments[2:])
    if arguments[:1] == [NODES]:
        from darkroom.engine.comfy.packs.commands import main as nodes

        return nodes(arguments[1:])
    if arguments[:1] == [MEDIA_FACTS]:
        from darkroom.engine.media.facts import main as media_facts

        return media_facts(arguments[1:])
    if arguments[:1] == [MODEL_FAULTS]:
        from darkroom.engine.models.files.faults_command import main as model_faults

        return model_faults()
    return serve(arguments)


def write_checkpoint(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog=f"python -m darkroom.engine {RANDOM_CHECKPOINT}")
    parser.add_argument("path", type=Path)
    parser.add_argument("--family", help="the family of models (the default one)")
    parser.add_argument("--scale", default="small", help="how large the networks are (small)")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)

    from darkroom.engine.families import registry
    from darkroom.engine.models.random_weights import write_random_checkpoint

    if given.family not in (None, *registry.family_names()):
        parser.error(f"--family: no such family; got {given.family!r}, expected one of {registry.family_names()}")
    family = None if given.family is None else registry.family_named(given.family)
    try:
        given.path.parent.mkdir(parents=True, exist_ok=True)
        write_random_checkpoint(given.path, given.scale, given.seed, family=family)
    except KeyError:
        parser.error(f"there is no scale {given.scale!r}")
    except OSError as error:
        parser.exit(1, f"cannot write {given.path}: {error.strerror or error}\n")
    return 0


def serve(arguments: Sequence[str]) -> int:
    from darkroom.engine.comfy.packs.confinement import confine
    from darkroom.engine.server import flags
    from darkroom.engine.server.log_records import set_up_logging
    from darkroom.engine.server.serve import log, run

    command = flags.read_flags(arguments)
    settings = command.settings.with_absolute_paths()
    set_up_logging(settings.verbose, command.log_format)
    if command.ignored:
        log.warning("flags without effect here: %s", " ".join(command.ignored))
    show_devices(settings)
    set_up_libraries()
    enter_base_directory(settings)
    confine(command.confinement)
    return run(settings, command.liveness_fd)


def enter_base_directory(settings: EngineSettings) -> None:
    """Make the base directory the working directory, as where ComfyUI is started in its own folder.

    Packs find `models/` by a relative path there. A Python program that a pack starts imports from its working
    directory first, which in a checkout or a package of ours has modules that packs have too.
    """
    settings.base_path.mkdir(parents=True, exist_ok=True)
    os.chdir(settings.base_path)


def show_devices(settings: EngineSettings) -> None:
    """Set the GPUs that CUDA's and ROCm's libraries can use.

    They read the setting once, when torch first looks for a device.
    """
    if settings.cuda_device is not None:
        visible = str(settings.cuda_device)
    elif settings.default_device is not None:
        others = (number for number in range(MOST_DEVICES) if number != settings.default_device)
        visible = ",".join(map(str, (settings.default_device, *others)))
    else:
        return
    for name in ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        os.environ[name] = visible  # noqa: TID251 - written for those libraries, which read nothing else


def set_up_libraries() -> None:
    """Set how the libraries under torch compute, before it loads them. What the operator has set stays."""
    from darkroom.engine.memory.library_defaults import library_defaults

    for name, value in library_defaults().items():
        os.environ.setdefault(name, value)  # noqa: TID251 - written for those libraries, which read nothing else


if __name__ == "__main__":
    from darkroom.start import settle

    settle("darkroom.engine", __package__)
    sys.exit(main(sys.argv[1:]))
