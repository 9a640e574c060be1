"""Memory timelines: what each stage brings to a device of a size, and who leaves for it."""

from __future__ import annotations

from darkroom.engine.memory.timeline import StageNeed, memory_timeline

GIB = 1 << 30
TEXT = StageNeed("1", "CLIPTextEncode", "text_encoder", "t5", 9 * GIB, GIB // 4)
NETWORK = StageNeed("2", "KSampler", "network", "flux", 22 * GIB, GIB // 4, 2 * GIB)
VAE = StageNeed("3", "VAEDecode", "vae", "ae", GIB // 3, 0, 3 * GIB)


def test_a_card_that_holds_all_of_it_lets_nothing_leave() -> None:
    stages = list(memory_timeline([TEXT, NETWORK, VAE], 80 * GIB))
    assert [stage.evicted for stage in stages] == [(), (), ()]
    assert [stage.streamed_bytes for stage in stages] == [0, 0, 0]
    assert stages[-1].device_bytes == sum(need.weights_bytes for need in (TEXT, NETWORK, VAE)) + VAE.working_bytes


def test_a_card_that_holds_the_largest_network_lets_the_others_leave() -> None:
    text, network, _ = memory_timeline([TEXT, NETWORK, VAE], 28 * GIB)
    assert text.evicted == () and text.loaded_bytes == TEXT.weights_bytes
    assert network.evicted == (("text_encoder", "t5"),) and network.streamed_bytes == 0 and network.missing_bytes == 0


def test_a_smaller_card_brings_a_network_layer_by_layer() -> None:
    _, network, decode = memory_timeline([TEXT, NETWORK, VAE], 12 * GIB)
    assert 0 < network.loaded_bytes < NETWORK.weights_bytes
    assert network.loaded_bytes + network.streamed_bytes == NETWORK.weights_bytes
    assert network.missing_bytes == 0 and network.device_bytes <= 12 * GIB
    assert decode.loaded_bytes == VAE.weights_bytes and decode.missing_bytes == 0


def test_working_memory_beyond_the_card_is_told() -> None:
    large = StageNeed("2", "KSampler", "network", "flux", 2 * GIB, GIB // 4, 9 * GIB)
    (stage,) = memory_timeline([large], 8 * GIB)
    assert stage.missing_bytes > 0


def test_a_model_used_twice_is_brought_once() -> None:
    stages = list(memory_timeline([TEXT, NETWORK, TEXT], 80 * GIB))
    assert stages[2].device_bytes == TEXT.weights_bytes + NETWORK.weights_bytes
