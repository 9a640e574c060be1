"""Number of threads that compute on a processor: one per physical core that the process may use."""

from __future__ import annotations

import torch

from darkroom.engine.tuning.process_setting import ProcessSetting
from darkroom.engine.tuning.quality import Quality
from darkroom.engine.tuning.strategy import MachineFacts, SamplingUse, Strategy, Undo


class Threads(Strategy):
    """One computing thread per physical core."""

    name = "threads"
    quality = Quality.SAME
    about = "one computing thread for each physical core that the process may use"
    is_size_sensitive = True

    def __init__(self) -> None:
        self._num_threads = 1
        self._setting = ProcessSetting(torch.get_num_threads, torch.set_num_threads)

    def missing(self, machine: MachineFacts) -> str | None:
        if machine.device_type != "cpu":
            return "the processor does not compute"
        self._num_threads = machine.num_cores
        if machine.num_cores == torch.get_num_threads():
            return f"torch uses {machine.num_cores} threads already"
        return None

    def apply(self, use: SamplingUse) -> Undo:
        return self._setting.hold(self._num_threads)
