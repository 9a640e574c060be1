"""Fragment shaders run by OpenGL ES in a process of their own."""

from __future__ import annotations

import pytest
import torch

from darkroom.engine.images.shaders import shader as module
from darkroom.engine.images.shaders.shader import Shader, ShaderFailed, run_shader, unavailable

runs_shaders = pytest.mark.skipif(unavailable() is not None, reason="OpenGL ES is not installed")
HEAD = """#version 300 es
precision highp float;
precision highp sampler2D;
uniform sampler2D u_image0;
uniform sampler2D u_image1;
uniform sampler2D u_curve0;
uniform vec2 u_resolution;
uniform float u_float0;
uniform int u_int0;
uniform bool u_bool0;
uniform int u_pass;
in vec2 v_texCoord;
layout(location = 0) out vec4 fragColor0;
layout(location = 1) out vec4 fragColor1;
"""
WIDTH, HEIGHT = 12, 8
PLENTY = 10**9


def image(seed: int, *, batch: int = 1, channels: int = 3) -> torch.Tensor:
    return torch.rand(batch, HEIGHT, WIDTH, channels, generator=torch.Generator().manual_seed(seed))


def run(body: str, *images: torch.Tensor, **values: object) -> list[torch.Tensor]:
    made = Shader(f"{HEAD}void main() {{ {body} }}", **values)  # type: ignore[arg-type]
    return run_shader(made, images, WIDTH, HEIGHT, PLENTY, lambda: None)


@runs_shaders
def test_images_values_and_curves_reach_the_shader_and_its_outputs_return() -> None:
    first, second = image(1, batch=2), image(2, batch=2, channels=4)
    found = run(
        "ivec2 at = ivec2(gl_FragCoord.xy);"
        "fragColor0 = mix(texelFetch(u_image0, at, 0), texelFetch(u_image1, at, 0), u_float0);"
        "fragColor1 = vec4(u_resolution, float(u_int0), u_bool0 ? texture(u_curve0, vec2(1.0, 0.5)).r : 0.0);",
        first, second, floats=[0.25], ints=[-3], flags=[True], curves=[[0.0, 0.5, 2.0]],
    )  # fmt: skip
    opaque = torch.cat([first, torch.ones(2, HEIGHT, WIDTH, 1)], dim=-1)
    torch.testing.assert_close(found[0], torch.lerp(opaque, second, 0.25))
    assert (found[1] == torch.tensor([WIDTH, HEIGHT, -3.0, 2.0])).all()
    assert not found[2].any() and not found[3].any()


@runs_shaders
def test_each_pass_reads_the_one_before() -> None:
    given = image(3)
    found = run(
        "fragColor0 = texelFetch(u_image0, ivec2(gl_FragCoord.xy), 0) * 2.0 + float(u_pass);\n#pragma passes 3\n", given
    )
    torch.testing.assert_close(found[0][..., :3], ((given * 2) * 2 + 1) * 2 + 2)


@runs_shaders
def test_a_shader_that_does_not_compile_fails_with_the_compiler_s_words() -> None:
    with pytest.raises(ShaderFailed, match="fragment_shader: does not compile: .*nowhere"):
        run("fragColor0 = nowhere;", image(1))


@runs_shaders
def test_a_shader_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RUN_SECONDS", 0.5)
    with pytest.raises(ShaderFailed, match=r"takes too long; expected at most 0\.5 s"):
        run("fragColor0 = texture(u_image0, v_texCoord);\n#pragma passes 1000000000\n", image(1))


@pytest.mark.parametrize(
    ("text", "images", "allowed", "message"),
    [
        ("x" * 200_001, [image(1)], PLENTY, "text is too long; got 200001 characters"),
        ("", [image(1)], 95, "too many pixels; got 1 images of 12x8, expected at most 95"),
        ("", [image(1, batch=2), image(2)], PLENTY, r"images\.image1: too few images; got 1, expected 2"),
        ("", [image(1, channels=2)], PLENTY, r"images\.image0: wrong number of channels; got 2"),
        ("", [image(1).expand(10**7, -1, -1, -1)], PLENTY * 9, "too large together with the outputs"),
    ],
)
def test_what_is_too_large_or_too_small_is_refused(
    text: str, images: list[torch.Tensor], allowed: int, message: str
) -> None:
    with pytest.raises(ShaderFailed, match=message):
        run_shader(Shader(text), images, WIDTH, HEIGHT, allowed, lambda: None)


def test_a_machine_without_opengl_es_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIBRARIES", ("libEGL-that-is-not-there.so.1",))
    found = unavailable()
    assert found is not None and "install libegl1, libgles2" in found
