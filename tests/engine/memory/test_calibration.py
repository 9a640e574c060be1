"""Correction of the estimate of a kind of model by measured use, without being led astray by an outlier."""

from __future__ import annotations

from darkroom.engine.memory.calibration import MAX_RATIO, MIN_ESTIMATE_BYTES, NUM_REMEMBERED, Calibration

WORK = 2 * MIN_ESTIMATE_BYTES


def test_an_estimate_that_was_too_low_is_raised_for_its_kind_alone_and_one_too_high_is_kept() -> None:
    calibration = Calibration()
    calibration.measured("unet", WORK, WORK * 3 // 2)
    calibration.measured("vae", WORK, WORK // 10)
    assert [calibration.corrected(kind, 1000) for kind in ("unet", "vae", "text_encoder")] == [1500, 1000, 1000]


def test_an_outlier_is_bounded_and_forgotten_after_ordinary_works() -> None:
    calibration = Calibration()
    calibration.measured("unet", WORK, 100 * WORK)
    assert calibration.corrected("unet", 10) == 10 * MAX_RATIO
    for _ in range(2):
        calibration.measured("unet", WORK, WORK)
    assert calibration.corrected("unet", 10) == 10


def test_a_correction_follows_the_last_works() -> None:
    calibration = Calibration()
    for used in (WORK, 2 * WORK):
        for _ in range(NUM_REMEMBERED):
            calibration.measured("unet", WORK, used)
    assert calibration.corrected("unet", 10) == 20


def test_works_so_small_that_workspaces_outweigh_them_say_nothing() -> None:
    calibration = Calibration()
    calibration.measured("unet", MIN_ESTIMATE_BYTES - 1, MAX_RATIO.__ceil__() * MIN_ESTIMATE_BYTES)
    assert calibration.corrected("unet", 10) == 10
