from __future__ import annotations

from engine.memory.calibration import MOST, Calibration


def test_an_estimate_that_was_too_low_is_raised_for_its_kind_and_never_lowered() -> None:
    calibration = Calibration()
    calibration.measured("unet", 100, 150)
    calibration.measured("unet", 100, 20)
    calibration.measured("vae", 100, 10)
    calibration.measured("text_encoder", 0, 10)
    assert [calibration.corrected(kind, 1000) for kind in ("unet", "vae", "text_encoder")] == [1500, 1000, 1000]


def test_one_outlier_does_not_keep_all_weights_off_the_device() -> None:
    calibration = Calibration()
    calibration.measured("unet", 1, 10_000)
    assert calibration.corrected("unet", 10) == 10 * MOST
