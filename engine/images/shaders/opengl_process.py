"""The process that runs a fragment shader: OpenGL ES 3.0 on a display without a screen, called through ctypes.

    python -I opengl_process.py FOLDER SECONDS MEMORY_BYTES PARENT

It reads FOLDER/job.json and FOLDER/numbers.bin, and writes FOLDER/result.bin, float32 `[B, outputs, H, W, 4]` from the
bottom row to the top, or FOLDER/fault.txt. It ends after SECONDS on all cores, with MEMORY_BYTES of data,
before other processes where memory is short, and with PARENT, the process that started it, to which it leaves the
processor. The standard library alone is imported, so that it starts at once and holds nothing of the engine.
The names of constants are those of `EGL/egl.h`, `EGL/eglext.h` and `GLES3/gl3.h`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import signal
import sys
from ctypes import CDLL, POINTER, byref, c_char_p, c_float, c_int, c_uint, c_void_p
from typing import Any

JOB, NUMBERS, RESULT, FAULT = "job.json", "numbers.bin", "result.bin", "fault.txt"

EGL_NONE, EGL_PBUFFER_BIT, EGL_OPENGL_ES3_BIT, EGL_OPENGL_ES_API = 0x3038, 0x0001, 0x0040, 0x30A0
EGL_SURFACE_TYPE, EGL_RENDERABLE_TYPE, EGL_CONTEXT_CLIENT_VERSION = 0x3033, 0x3040, 0x3098
EGL_WIDTH, EGL_HEIGHT = 0x3057, 0x3056
EGL_PLATFORM_DEVICE_EXT, EGL_PLATFORM_SURFACELESS_MESA = 0x313F, 0x31DD
MAX_DEVICES = 16

GL_TRIANGLES, GL_BLEND, GL_FLOAT, GL_RGBA, GL_RED = 0x0004, 0x0BE2, 0x1406, 0x1908, 0x1903
GL_TEXTURE_2D, GL_TEXTURE0, GL_RGBA32F, GL_R32F = 0x0DE1, 0x84C0, 0x8814, 0x822E
GL_TEXTURE_MAG_FILTER, GL_TEXTURE_MIN_FILTER, GL_TEXTURE_WRAP_S, GL_TEXTURE_WRAP_T = 0x2800, 0x2801, 0x2802, 0x2803
GL_LINEAR, GL_CLAMP_TO_EDGE, GL_COLOR_BUFFER_BIT, GL_MAX_TEXTURE_SIZE = 0x2601, 0x812F, 0x4000, 0x0D33
GL_FRAGMENT_SHADER, GL_VERTEX_SHADER, GL_COMPILE_STATUS, GL_LINK_STATUS = 0x8B30, 0x8B31, 0x8B81, 0x8B82
GL_FRAMEBUFFER, GL_FRAMEBUFFER_COMPLETE, GL_COLOR_ATTACHMENT0 = 0x8D40, 0x8CD5, 0x8CE0

MAX_IMAGES = 5  # curves are bound to the texture units after those of images
LOG_BYTES = 4096
PR_SET_PDEATHSIG = 1
PRIORITY, OOM_SCORE = 5, "900"
VERTEX_SHADER = b"""#version 300 es
out vec2 v_texCoord;
void main() {
    vec2 corner = vec2(gl_VertexID == 1 ? 3.0 : -1.0, gl_VertexID == 2 ? 3.0 : -1.0);
    v_texCoord = corner * 0.5 + 0.5;
    gl_Position = vec4(corner, 0.0, 1.0);
}
"""
"""One triangle that covers the image; the texture coordinate is 0..1 from the left bottom corner to the right top."""


class ShaderFault(Exception):
    """A fault of the shader or of the machine, in words for the prompt's sender."""


def egl_attributes(*values: int) -> Any:
    return (c_int * (len(values) + 1))(*values, EGL_NONE)


def displays(egl: CDLL) -> Any:
    """Yield the default display, those of devices, and Mesa's without a surface, as far as the library has them."""
    yield egl.eglGetDisplay(c_void_p(None))
    find = egl.eglGetProcAddress(b"eglGetPlatformDisplayEXT")
    if not find:
        return
    display_of = ctypes.CFUNCTYPE(c_void_p, c_uint, c_void_p, c_void_p)(find)
    query = egl.eglGetProcAddress(b"eglQueryDevicesEXT")
    if query:
        devices, count = (c_void_p * MAX_DEVICES)(), c_int(0)
        ctypes.CFUNCTYPE(c_uint, c_int, c_void_p, c_void_p)(query)(MAX_DEVICES, devices, byref(count))
        for device in devices[: count.value]:
            yield display_of(EGL_PLATFORM_DEVICE_EXT, device, None)
    yield display_of(EGL_PLATFORM_SURFACELESS_MESA, None, None)


def open_context() -> CDLL:
    """Make a context of OpenGL ES 3 current and return the library. Raises ShaderFault where no display has one."""
    egl, gl = CDLL("libEGL.so.1", mode=ctypes.RTLD_GLOBAL), CDLL("libGLESv2.so.2", mode=ctypes.RTLD_GLOBAL)
    for name in ("eglGetDisplay", "eglGetProcAddress", "eglCreatePbufferSurface", "eglCreateContext"):
        getattr(egl, name).restype = c_void_p
    egl.eglGetProcAddress.argtypes = [c_char_p]
    for display in displays(egl):
        shown = c_void_p(display)
        if not display or not egl.eglInitialize(shown, None, None) or not egl.eglBindAPI(EGL_OPENGL_ES_API):
            continue
        config, count = c_void_p(), c_int(0)
        wanted = egl_attributes(EGL_RENDERABLE_TYPE, EGL_OPENGL_ES3_BIT, EGL_SURFACE_TYPE, EGL_PBUFFER_BIT)
        if not egl.eglChooseConfig(shown, wanted, byref(config), 1, byref(count)) or not count.value:
            continue
        surface = c_void_p(egl.eglCreatePbufferSurface(shown, config, egl_attributes(EGL_WIDTH, 1, EGL_HEIGHT, 1)))
        version = egl_attributes(EGL_CONTEXT_CLIENT_VERSION, 3)
        context = c_void_p(egl.eglCreateContext(shown, config, c_void_p(None), version))
        if context and egl.eglMakeCurrent(shown, surface, surface, context):
            return gl
    raise ShaderFault(
        "OpenGL ES: no display has a context of version 3; install libgl1-mesa-dri or a driver for graphics"
    )


def log_of(read: Any, item: int) -> str:
    """Return the compiler's log of a shader, or the linker's of a program."""
    text = ctypes.create_string_buffer(LOG_BYTES)
    read(item, LOG_BYTES, None, text)
    return text.value.decode("utf-8", errors="replace").strip()


def compiled(gl: CDLL, kind: int, text: bytes) -> int:
    """Return a compiled shader. Raises ShaderFault with the compiler's words."""
    shader: int = gl.glCreateShader(kind)
    gl.glShaderSource(shader, 1, byref(c_char_p(text)), None)
    gl.glCompileShader(shader)
    done = c_int(0)
    gl.glGetShaderiv(shader, GL_COMPILE_STATUS, byref(done))
    if not done.value:
        raise ShaderFault(f"fragment_shader: does not compile: {log_of(gl.glGetShaderInfoLog, shader)}")
    return shader


def linked(gl: CDLL, text: bytes) -> int:
    """Return the program of a fragment shader, in use. Raises ShaderFault."""
    program: int = gl.glCreateProgram()
    gl.glAttachShader(program, compiled(gl, GL_VERTEX_SHADER, VERTEX_SHADER))
    gl.glAttachShader(program, compiled(gl, GL_FRAGMENT_SHADER, text))
    gl.glLinkProgram(program)
    done = c_int(0)
    gl.glGetProgramiv(program, GL_LINK_STATUS, byref(done))
    if not done.value:
        raise ShaderFault(f"fragment_shader: does not link: {log_of(gl.glGetProgramInfoLog, program)}")
    gl.glUseProgram(program)
    return program


def texture(gl: CDLL, unit: int) -> int:
    """Return a new texture, bound to a unit, that is interpolated between pixels and level beyond its edges."""
    name = c_uint(0)
    gl.glGenTextures(1, byref(name))
    gl.glActiveTexture(GL_TEXTURE0 + unit)
    gl.glBindTexture(GL_TEXTURE_2D, name)
    for key, value in (
        (GL_TEXTURE_MIN_FILTER, GL_LINEAR), (GL_TEXTURE_MAG_FILTER, GL_LINEAR),
        (GL_TEXTURE_WRAP_S, GL_CLAMP_TO_EDGE), (GL_TEXTURE_WRAP_T, GL_CLAMP_TO_EDGE),
    ):  # fmt: skip
        gl.glTexParameteri(GL_TEXTURE_2D, key, value)
    return name.value


def canvas(gl: CDLL, unit: int, count: int, width: int, height: int) -> tuple[int, int]:
    """Return a framebuffer of `count` float textures of this size, and the first of these. Raises ShaderFault."""
    name = c_uint(0)
    gl.glGenFramebuffers(1, byref(name))
    gl.glBindFramebuffer(GL_FRAMEBUFFER, name)
    textures = []
    for index in range(count):
        textures.append(texture(gl, unit))
        gl.glTexImage2D(GL_TEXTURE_2D, 0, GL_RGBA32F, width, height, 0, GL_RGBA, GL_FLOAT, None)
        attachment = GL_COLOR_ATTACHMENT0 + index
        gl.glFramebufferTexture2D(GL_FRAMEBUFFER, attachment, GL_TEXTURE_2D, textures[-1], 0)
    gl.glDrawBuffers(count, (c_uint * count)(*(GL_COLOR_ATTACHMENT0 + index for index in range(count))))
    if gl.glCheckFramebufferStatus(GL_FRAMEBUFFER) != GL_FRAMEBUFFER_COMPLETE:
        raise ShaderFault(f"OpenGL ES: float images of {width}x{height} are not supported by this driver")
    return name.value, textures[0]


def set_uniforms(gl: CDLL, program: int, job: dict[str, Any]) -> None:
    """Set what stays the same for all images. Uniforms that the shader does not read have the location -1."""

    def at(name: str) -> int:
        location: int = gl.glGetUniformLocation(program, name.encode())
        return location

    gl.glUniform2f(at("u_resolution"), c_float(job["width"]), c_float(job["height"]))
    for index in range(len(job["images"])):
        gl.glUniform1i(at(f"u_image{index}"), index)
    for index in range(len(job["curves"])):
        gl.glUniform1i(at(f"u_curve{index}"), MAX_IMAGES + index)
    for index, value in enumerate(job["floats"]):
        gl.glUniform1f(at(f"u_float{index}"), c_float(value))
    for kind, values in (("int", job["ints"]), ("bool", job["flags"])):
        for index, value in enumerate(values):
            gl.glUniform1i(at(f"u_{kind}{index}"), int(value))


def render(gl: CDLL, job: dict[str, Any], numbers: Any, result: Any) -> None:
    """Run the shader on each item of the batch and write its outputs. Raises ShaderFault."""
    width, height, passes, count = job["width"], job["height"], job["passes"], job["outputs"]
    largest = c_int(0)
    gl.glGetIntegerv(GL_MAX_TEXTURE_SIZE, byref(largest))
    if max(width, height, *(max(size) for size in job["images"])) > largest.value:
        raise ShaderFault(f"size_mode: images are too large; expected sides of at most {largest.value} pixels")
    program = linked(gl, job["text"].encode())
    vertices = c_uint(0)
    gl.glGenVertexArrays(1, byref(vertices))
    gl.glBindVertexArray(vertices)
    spare = MAX_IMAGES + len(job["curves"])
    final, _ = canvas(gl, spare, count, width, height)
    between = [canvas(gl, spare, 1, width, height) for _ in range(2 if passes > 1 else 0)]
    for index, length in enumerate(job["curves"]):
        texture(gl, MAX_IMAGES + index)
        gl.glTexImage2D(GL_TEXTURE_2D, 0, GL_R32F, length, 1, 0, GL_RED, GL_FLOAT, numbers.read(length * 4))
    inputs = [texture(gl, index) for index in range(len(job["images"]))]
    set_uniforms(gl, program, job)
    current_pass = gl.glGetUniformLocation(program, b"u_pass")
    gl.glViewport(0, 0, width, height)
    gl.glDisable(GL_BLEND)
    gl.glClearColor(c_float(0), c_float(0), c_float(0), c_float(0))
    pixels = ctypes.create_string_buffer(width * height * 16)
    for _ in range(job["batch"]):
        for index, (rows, columns) in enumerate(job["images"]):
            gl.glActiveTexture(GL_TEXTURE0 + index)
            gl.glBindTexture(GL_TEXTURE_2D, inputs[index])
            read = numbers.read(rows * columns * 16)
            gl.glTexImage2D(GL_TEXTURE_2D, 0, GL_RGBA32F, columns, rows, 0, GL_RGBA, GL_FLOAT, read)
        gl.glActiveTexture(GL_TEXTURE0)
        for step in range(passes):
            gl.glUniform1i(current_pass, step)
            gl.glBindFramebuffer(GL_FRAMEBUFFER, final if step == passes - 1 else between[step % 2][0])
            gl.glBindTexture(GL_TEXTURE_2D, inputs[0] if step == 0 else between[(step - 1) % 2][1])
            gl.glClear(GL_COLOR_BUFFER_BIT)
            gl.glDrawArrays(GL_TRIANGLES, 0, 3)
        for index in range(count):
            gl.glReadBuffer(GL_COLOR_ATTACHMENT0 + index)
            gl.glReadPixels(0, 0, width, height, GL_RGBA, GL_FLOAT, pixels)
            result.write(pixels.raw)


def bind_types(gl: CDLL) -> None:
    """Declare the arguments of the functions that take floats or pointers with other ones."""
    gl.glUniform1f.argtypes = [c_int, c_float]
    gl.glUniform2f.argtypes = [c_int, c_float, c_float]
    gl.glClearColor.argtypes = [c_float] * 4
    gl.glTexImage2D.argtypes = [c_uint, *[c_int] * 5, c_uint, c_uint, c_void_p]
    gl.glShaderSource.argtypes = [c_uint, c_int, POINTER(c_char_p), c_void_p]


def limit_process(seconds: int, memory_bytes: int, parent: int) -> None:
    """Limit time, memory and priority of this process, and end it with its parent."""
    CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)
    cores = os.cpu_count() or 1
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_CPU: seconds * cores, resource.RLIMIT_DATA: memory_bytes}
    for kind, limit in limits.items():
        _, hard = resource.getrlimit(kind)
        lowest = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(kind, (lowest, lowest))
    os.nice(PRIORITY)
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(OOM_SCORE)


def main() -> int:
    folder, seconds, memory_bytes, parent = sys.argv[1], *map(int, sys.argv[2:])
    limit_process(seconds, memory_bytes, parent)
    try:
        with open(f"{folder}/{JOB}", encoding="utf-8") as file:
            job = json.load(file)
        gl = open_context()
        bind_types(gl)
        with open(f"{folder}/{NUMBERS}", "rb") as numbers, open(f"{folder}/{RESULT}", "wb") as result:
            render(gl, job, numbers, result)
    except ShaderFault as fault:
        with open(f"{folder}/{FAULT}", "w", encoding="utf-8") as file:
            file.write(str(fault))
    return 0


if __name__ == "__main__":
    sys.exit(main())
