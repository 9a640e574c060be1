"""Names in messages between front and engine: keys of `extra_data`, fields of the history, nodes of shared work."""

from __future__ import annotations

import re
from typing import Final

QUALITY_KEY: Final = "quality"
"""Key of a prompt's `extra_data`: the quality of tuning that its run may use (`contract/quality.py`)."""

PREVIEW_METHOD_KEY: Final = "preview_method"
"""Key of a prompt's `extra_data`: the method of its previews."""

OWN_FILES: Final = "own_files"
"""Key of a prompt's `extra_data`: names in the input folder. A prompt without it may read any file."""

ARRIVING_KEY: Final = "arriving_files"
"""Key of a prompt's `extra_data`: model files (`KIND/NAME`) that may be read while they are downloaded."""

CHECKPOINT_KEY: Final = "checkpoint"
"""Key of a prompt's `extra_data`: the folder of its checkpoints."""

PARTNER_KEYS: Final = ("auth_token_comfy_org", "api_key_comfy_org")
"""Keys of a prompt's `extra_data`, as ComfyUI has them: secrets for the services of its partner nodes."""

KEY_FORM: Final = "16 to 64 lower-case hexadecimal digits"
"""Form of the folder's name, in words."""

_KEY: Final = re.compile(r"[0-9a-f]{16,64}")

CONTINUED_BY: Final = "continued_by"
"""Field of a history entry: ids of the prompts that go on with what this one began."""

SHARED_WORK_FOLDER: Final = ".shared_work"
"""Folder within the output folder, which the engines share; it has a folder for each prompt."""

SHARED_UPSCALE: Final = "DarkroomSharedUpscale"
UPSCALE_HELP: Final = "DarkroomUpscaleHelp"
SHARED_GUIDANCE: Final = "DarkroomSharedGuidance"
GUIDANCE_HELP: Final = "DarkroomGuidanceHelp"


def is_checkpoint_key(value: object) -> bool:
    """Return True for a name that is safe as a folder's."""
    return isinstance(value, str) and _KEY.fullmatch(value) is not None
