"""Types of the parameters that every modifier with a KSampler has: node 3 of its workflow; 4 loads the checkpoint."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from darkroom.modifiers.modifier import Guidance, Into, Name, OfFamily, Seed, Steps

SAMPLER, CHECKPOINT = "3", "4"  # nodes

SamplerSeed = Annotated[Seed, Into(SAMPLER, "seed"), Field(description="Left out: a random one.")]
SamplerSteps = Annotated[Steps, Into(SAMPLER, "steps"), OfFamily("steps"), Field(description="Sampling steps.")]
PromptStrength = Annotated[Guidance, Into(SAMPLER, "cfg"), OfFamily("cfg"), Field(description="Weight of the prompts.")]
SamplerName = Annotated[
    Name, Into(SAMPLER, "sampler_name"), OfFamily("sampler_name"), Field(description="A sampler of KSampler.")
]
SchedulerName = Annotated[
    Name, Into(SAMPLER, "scheduler"), OfFamily("scheduler"), Field(description="A scheduler of KSampler.")
]
CheckpointName = Annotated[Name, Into(CHECKPOINT, "ckpt_name"), Field(description="A file of the checkpoints folder.")]
