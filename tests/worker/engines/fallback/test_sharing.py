"""Memory of one device for two engines, decided from what each has been measured to hold."""

from __future__ import annotations

from darkroom.worker.engines.fallback.sharing import DeviceUse, device_use, may_stay


def test_the_use_of_a_card_is_what_torch_holds_and_of_a_processor_what_the_process_has() -> None:
    card = {"devices": [{"type": "cuda", "vram_total": 80, "torch_vram_total": 30}]}
    assert device_use(card, 5) == DeviceUse(80, 30)
    processor = {"devices": [{"type": "cpu", "vram_total": 80, "torch_vram_total": 80}]}
    assert device_use(processor, 5) == DeviceUse(80, 5)


def test_what_is_not_reported_is_not_guessed() -> None:
    assert device_use({}, 5) is None and device_use({"devices": []}, 5) is None
    assert device_use({"devices": [{"type": "cpu", "vram_total": 80}]}, None) is None
    assert device_use({"devices": [{"type": "cuda", "vram_total": 0, "torch_vram_total": 0}]}, None) is None


def test_both_stay_where_the_need_of_the_one_leaves_room_for_the_other() -> None:
    assert may_stay(10, 80, 100) and not may_stay(20, 80, 100)
    assert may_stay(40, None, 100) and not may_stay(50, None, 100)  # nothing is known yet: half of the device
