"""Assaults on a running worker: each sends one hostile thing and returns the replies that it got.

They come from loopback addresses of their own, so that limits per address fall on them and not on the honest client.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import random
import struct
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from tests.security.costly_pages import PAGES
from tests.security.planted import CUSTOMER_KEY, HOARDERS_KEY, secret

MIB = 1024 * 1024
GIVE_UP_SECONDS = 30.0


@dataclass(slots=True)
class Target:
    """The worker at host and port, and the address of a server that lies to whoever asks it."""

    host: str
    port: int
    liar: str
    chance: random.Random

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def address(self) -> str:
        """Return a source address of the attacker's."""
        return f"127.0.{self.chance.randint(1, 3)}.{self.chance.randint(1, 250)}"

    async def send(self, method: str, path: str, *, has_key: bool = True, **sent: Any) -> httpx.Response | None:
        """Send one request from an address of the attacker's; None where the worker closed the connection."""
        headers = {"Authorization": f"Bearer {CUSTOMER_KEY}"} if has_key else {}
        headers |= sent.pop("headers", {})
        transport = httpx.AsyncHTTPTransport(local_address=self.address())
        with contextlib.suppress(httpx.TransportError, httpx.InvalidURL):
            async with httpx.AsyncClient(transport=transport, base_url=self.url, timeout=GIVE_UP_SECONDS) as http:
                return await http.request(method, path, headers=headers, **sent)
        return None

    async def generate(self, input_: dict[str, Any], **sent: Any) -> httpx.Response | None:
        return await self.send("POST", "/generate", json={"input": input_}, **sent)


Assault = Callable[[Target], Awaitable[list[httpx.Response | None]]]


def load_image(image: str) -> dict[str, Any]:
    """Return a workflow that loads and saves an image."""
    return {
        "1": {"class_type": "LoadImage", "inputs": {"image": image}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "attack"}},
    }


async def malformed(target: Target) -> list[httpx.Response | None]:
    """Send bodies that are no request, with and without a key."""
    chance = target.chance
    bodies = [
        chance.randbytes(chance.randint(1, 4096)),
        b'{"input": {"workflow_json": {"1": {"class_type": "KSampler", "inputs": {"cfg": 1e400, "seed": -1e999}}}}}',
        b'{"input": {"modifier": "Text2Image", "modifications": {"steps": NaN, "width": Infinity}}}',
        b'{"input": ' + b'{"a": ' * 5000 + b"1" + b"}" * 5000 + b"}",
        b'{"input": {"workflow_json": {"\xff\xfe": null}}}',
        b'{"input": {"workflow_json": {"1": {"class_type": "\\ud800", "inputs": []}}}}',
        json.dumps({"input": {"workflow_json": random_graph(chance)}}).encode(),
        json.dumps({"input": {"workflow_json": load_image("x"), "webhook": {"extra_params": {"a": 1}}}}).encode(),
    ]
    path = chance.choice(["/generate", "/generate/sync", "/generate/stream", "/runsync", "/cancel/x", "/webhooks/test"])
    content = chance.choice(bodies)
    kind = chance.choice(["application/json", "text/plain", "multipart/form-data; boundary=x", "application/xml"])
    headers = {"Content-Type": kind, "X-Odd": "y" * chance.choice([1, 5000])}
    return [await target.send("POST", path, content=content, headers=headers, has_key=chance.random() < 0.7)]


def random_graph(chance: random.Random) -> dict[str, Any]:
    """Return a graph of odd nodes, links and values."""
    kinds = ["EmptyImage", "SaveImage", "KSampler", "PreviewImage", "LoadImage", "Nothing", "", 5, None]
    values: list[Any] = [
        ["1", 0],
        ["9", 9],
        [],
        {},
        None,
        True,
        -1,
        2**70,
        "x" * 300,
        "../../etc/passwd",
        [["1", 0]],
        1.5,
    ]
    nodes = range(chance.randint(1, 12))
    names = ["images", "image", "width", "filename_prefix", "model", "seed", "odd"]
    return {
        str(node): {
            "class_type": chance.choice(kinds),
            "inputs": {chance.choice(names): chance.choice(values) for _ in range(4)},
        }
        for node in nodes
    }


async def oversized(target: Target) -> list[httpx.Response | None]:
    """Send bodies that are long, or that cost much to read."""
    bodies = [
        (b"[[],[]," + b"[]," * (9 * MIB) + b"[]]", False),
        (b'{"input": {"workflow_json": {' + b",".join(b'"%d": 1' % index for index in range(600_000)) + b"}}}", False),
        (b"[" * (2 * MIB), True),
        (
            json.dumps({"input": {"workflow_json": {str(i): {"class_type": "No"} for i in range(60_000)}}}).encode(),
            True,
        ),
        (b'{"input": {"modifier": "' + b"a" * (20 * MIB) + b'"}}', True),
    ]
    content, has_key = target.chance.choice(bodies)
    return [await target.send("POST", "/generate", content=content, has_key=has_key)]


async def slow(target: Target) -> list[httpx.Response | None]:
    """Hold connections with heads and bodies that come a byte at a time."""

    async def dribble(start: bytes) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            _, writer = await connect(target)
            writer.write(start)
            for _ in range(20):
                await asyncio.sleep(0.5)
                writer.write(b"x")
                await writer.drain()
            writer.close()

    head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n"
    await asyncio.gather(*(dribble(head + (b"\r\n" if index % 2 else b"X-Slow: ")) for index in range(20)))
    return []


async def many_connections(target: Target) -> list[httpx.Response | None]:
    """Open connections that send nothing, more than a usual limit of open files, and heads without an end."""
    held = []
    for _ in range(700):
        with contextlib.suppress(OSError):
            held.append((await connect(target))[1])
    for writer in held[:5]:
        with contextlib.suppress(OSError):
            writer.write(b"GET /live HTTP/1.1\r\nX-Long: " + b"y" * (4 * MIB))
    await asyncio.sleep(3)
    for writer in held:
        writer.close()
    return []


async def connect(target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a plain connection from an address of the attacker's."""
    opened = asyncio.open_connection(target.host, target.port, local_addr=(target.address(), 0))
    return await asyncio.wait_for(opened, 5)


async def lying_peers(target: Target) -> list[httpx.Response | None]:
    """Name a server that answers compressed, endlessly or never, as input, store and receiver."""
    kind = target.chance.choice(["bomb", "endless", "refusal", "dribble", "nolength", "inwards"])
    there = target.liar.removeprefix("http://")
    user = f"{secret('url-user')}:{secret('url-password')}"
    url = f"http://{user}@{there}/{kind}?token={secret('url-query')}&X-Amz-Signature={secret('url-signature')}"
    hook = f"http://u:{secret('hook-password')}@{there}/{kind}?token={secret('hook-query')}"
    store = {
        "access_key_id": "stranger",
        "secret_access_key": secret("s3-secret"),
        "endpoint_url": f"{target.liar}/{kind}",
        "bucket_name": "b",
        "connect_attempts": 1,
        "connect_timeout": 2,
    }
    made = {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": 1}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "attack"}},
    }
    webhook = {"url": hook, "secret": secret("hook-secret"), "timeout": 2}
    return [
        await target.generate({"workflow_json": load_image(url), "webhook": webhook}),
        await target.generate({"workflow_json": made, "s3": store, "webhook": webhook}),
        await target.generate({"workflow_json": load_image("s3://b/in.png"), "s3": store}),
    ]


INWARD_ADDRESSES = (
    "http://127.0.0.1:1/x.png", "http://[::1]/x", "http://0/x", "http://2130706433/x", "http://0x7f.1/x",
    "http://169.254.169.254/latest/meta-data/", "http://[::ffff:10.0.0.1]/x", "http://192.88.99.1/x",
    "http://[64:ff9b::a00:1]/x", "http://[2002:a00:1::]/x", "file:///etc/passwd", "gopher://10.0.0.1/x",
    "http://localhost/x", "http://10.1.2.3/x", "http://100.64.0.1/x", "http://metadata.google.internal/x",
)  # fmt: skip


async def ssrf(target: Target) -> list[httpx.Response | None]:
    """Name addresses behind the worker as input, webhook and store."""
    url = target.chance.choice(INWARD_ADDRESSES)
    return [
        await target.generate({"workflow_json": load_image(url)}),
        await target.generate({"workflow_json": load_image("x.png"), "webhook": {"url": url}}),
        await target.generate({"workflow_json": load_image("x.png"), "s3": {"endpoint_url": url, "bucket_name": "b"}}),
    ]


async def rebinding(target: Target) -> list[httpx.Response | None]:
    """Ask as a page whose name has come to mean this machine, and through proxies that say so; nothing may answer."""
    host = target.chance.choice(["evil.example", f"evil.example:{target.port}", "localhost.evil.example", "0.0.0.0"])
    claimed = target.chance.choice(["CF-Connecting-IP", "X_Forwarded_For", "True-Client-IP", "X-Forwarded-For", "Via"])
    headers = {"Host": host, "Origin": f"http://{host}", claimed: "127.0.0.1"}
    paths = [("GET", "/result/x"), ("GET", "/webhooks"), ("POST", "/generate"), ("POST", "/benchmark")]
    method, path = target.chance.choice(paths)
    reply = await target.send(method, path, headers=headers, has_key=False, content=b"{}" if method == "POST" else None)
    assert reply is None or reply.status_code >= 400, f"{method} {path} with {headers} was answered"
    return [reply]


NAMES = (
    "../state/darkroom.db", "../../etc/passwd", "/etc/passwd", "x_00001_.png [output]", "x.png [temp]", "..%2f..%2fx",
    "darkroom/../../state/lock", "a\0b.png", "con", "." * 300, "\\\\server\\x", "file.png [input] [output]",
)  # fmt: skip


async def traversal(target: Target) -> list[httpx.Response | None]:
    """Name files outside of what a job may read or write."""
    name = target.chance.choice(NAMES)
    saved = {
        "1": {"class_type": "EmptyImage", "inputs": {"width": 16, "height": 16, "batch_size": 1, "color": 1}},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": name}},
    }
    return [
        await target.generate({"workflow_json": load_image(name)}),
        await target.generate({"workflow_json": saved, "request_id": name.replace("\0", "")[:200]}),
        await target.send("GET", f"/outputs/x/{name}?expires=9999999999&signature=00", has_key=False),
        await target.send("GET", f"/result/{name[:100]}"),
    ]


async def regular_expressions(target: Target) -> list[httpx.Response | None]:
    """Match with an expression that takes exponential time."""
    match = {"string": "a" * 40 + "!", "regex_pattern": "(a|a)*$", "case_insensitive": False, "multiline": False}
    graph = {
        "1": {"class_type": "RegexMatch", "inputs": {**match, "dotall": False}},
        "2": {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}},
    }
    return [await target.generate({"workflow_json": graph})]


async def images(target: Target) -> list[httpx.Response | None]:
    """Send images that unpack to far more than they are."""
    content = target.chance.choice([many_frames, large_canvas, packed_text])()
    data = f"data:image/png;base64,{base64.b64encode(content).decode()}"
    return [await target.generate({"workflow_json": load_image(data)})]


def many_frames() -> bytes:
    """Return a GIF of 600 frames."""
    frames = [Image.new("P", (256, 256), index % 7) for index in range(600)]
    held = io.BytesIO()
    frames[0].save(held, "GIF", save_all=True, append_images=frames[1:], optimize=False)
    return held.getvalue()


def large_canvas() -> bytes:
    """Return a PNG whose head promises 60,000 x 60,000 pixels."""
    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", head) + _chunk(b"IDAT", zlib.compress(bytes(MIB))) + _chunk(b"IEND", b"")
    )


def packed_text() -> bytes:
    """Return a PNG with 64 MiB of text in a compressed chunk."""
    held = io.BytesIO()
    Image.new("RGB", (8, 8)).save(held, "PNG")
    text = b"comment\0\0" + zlib.compress(bytes(64 * MIB))
    content = held.getvalue()
    return content[:33] + _chunk(b"zTXt", text) + content[33:]


def _chunk(tag: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + tag + body + struct.pack(">I", zlib.crc32(tag + body))


async def large_outputs(target: Target) -> list[httpx.Response | None]:
    """Have large images made and converted to formats whose encoders take memory and time."""
    chance = target.chance
    size = {"width": 2048, "height": 2048, "batch_size": 1, "color": chance.randrange(1 << 24)}
    graph = {
        "1": {"class_type": "EmptyImage", "inputs": size},
        "2": {"class_type": "SaveImage", "inputs": {"images": ["1", 0], "filename_prefix": "large"}},
    }
    output = {"format": chance.choice(["avif", "webp", "jpeg"]), "thumbnail_size": 512}
    return [await target.generate({"workflow_json": graph, "output": output})]


async def audio(target: Target) -> list[httpx.Response | None]:
    """Send a FLAC of some bytes that declares 300 s of 8 channels at 655 kHz: 1.6 billion samples."""
    graph = {
        "1": {"class_type": "LoadAudio", "inputs": {"audio": f"data:audio/flac;base64,{declared_flac()}"}},
        "2": {"class_type": "PreviewAudio", "inputs": {"audio": ["1", 0]}},
    }
    return [await target.generate({"workflow_json": graph})]


def declared_flac() -> str:
    """Return the head of a FLAC file (RFC 9639, section 8.2) in base64."""
    rate_hz, channels, bits, num_samples = 655_350, 8, 16, 300 * 655_350
    packed = rate_hz << 44 | channels - 1 << 41 | bits - 1 << 36 | num_samples
    stream_info = struct.pack(">HH6xQ16x", 4096, 4096, packed)
    head = b"fLaC\x80" + len(stream_info).to_bytes(3, "big") + stream_info
    return base64.b64encode(head + bytes(64)).decode()


async def model_files(target: Target) -> list[httpx.Response | None]:
    """Have malformed model files read (`furnish_models`)."""
    name = target.chance.choice(list(malformed_models()))
    graph = {
        "1": {"class_type": "UpscaleModelLoader", "inputs": {"model_name": name}},
        "2": {"class_type": "EmptyImage", "inputs": {"width": 64, "height": 64, "batch_size": 1, "color": 0}},
        "3": {"class_type": "ImageUpscaleWithModel", "inputs": {"upscale_model": ["1", 0], "image": ["2", 0]}},
        "4": {"class_type": "PreviewImage", "inputs": {"images": ["3", 0]}},
    }
    return [await target.generate({"workflow_json": graph})]


def malformed_models() -> dict[str, bytes]:
    """Return model files by name that took minutes or memory, or broke what reads them."""
    entry = '{"dtype":"F32","shape":[%s],"data_offsets":[0,16]}'
    shared = ",".join(f'"{index}":{entry % 4}' for index in range(50_000))
    headers = {
        "shape": '{"a":%s}' % (entry % ",".join(["2"] * 200_000)),
        "digits": '{"a":%s}' % (entry % ("9" * 4_000)),
        "shared": f"{{{shared}}}",
        "deep": '{"__metadata__":%s}' % ("[" * 500_000),
    }
    files = {
        f"{name}.safetensors": struct.pack("<Q", len(header)) + header.encode() + bytes(16)
        for name, header in headers.items()
    }
    itself = b"\x80\x02}q\x00U\x0astate_dictq\x01h\x00s."
    return files | {"itself.pt": itself, "empty.pt": b"PK"}


def furnish_models(models: Path) -> None:
    """Write the malformed model files to a folder of models."""
    folder = models / "upscale_models"
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in malformed_models().items():
        (folder / name).write_bytes(content)


async def hostile_pack(target: Target) -> list[httpx.Response | None]:
    """Run the nodes of a hostile pack, and cancel what would not end by itself."""
    node = target.chance.choice(["HostileBusy", "HostileReader", "HostileMemory", "HostileFiles"])
    graph: dict[str, Any] = {"1": {"class_type": node, "inputs": {"text": str(target.chance.random())}}}
    graph["2"] = {"class_type": "PreviewAny", "inputs": {"source": ["1", 0]}}
    reply = await target.generate({"workflow_json": graph})
    if reply is None or reply.status_code != 202:
        return [reply]
    await asyncio.sleep(3)
    return [reply, await target.send("POST", f"/cancel/{reply.json()['id']}")]


async def costly_pages(target: Target) -> list[httpx.Response | None]:
    """Send pages that are dear to read for their size, to each route that reads them."""
    make, num = PAGES[target.chance.choice(list(PAGES))]
    page = make(num * target.chance.choice([8, 40]))
    overrides = {f"SaveImage.q{index}": 1 for index in range(600)} if target.chance.random() < 0.3 else {}
    path = target.chance.choice(["/convert", "/plan", "/generate", "/generate/batch"])
    given = {"workflow_json": page, "overrides": overrides}
    body = {"inputs": [given] * 2} if path.endswith("batch") else {"input": given} if "generate" in path else page
    return [await target.send("POST", path, json=body)]


async def packed_workflows(target: Target) -> list[httpx.Response | None]:
    """Send images whose workflow unpacks to millions of values or to hundreds of levels, one and many at once."""
    many, deep = b'{"1": [' + b"[]," * (2 * MIB) + b"[]]}", b'{"1": ' + b"[" * 900 + b"]" * 900 + b"}"
    text = b"prompt\0\0" + zlib.compress(target.chance.choice([many, deep]))
    content = base64.b64encode(b"\x89PNG\r\n\x1a\n" + _chunk(b"zTXt", text)).decode()
    batch = {"inputs": [{"workflow_json": content}] * 20}
    return [await target.generate({"workflow_json": content}), await target.send("POST", "/generate/batch", json=batch)]


async def hoarding(target: Target) -> list[httpx.Response | None]:
    """Store files until the quota is full, in each way."""
    content, key = target.chance.randbytes(3 * MIB), {"Authorization": f"Bearer {HOARDERS_KEY}"}
    held = io.BytesIO()
    Image.new("RGB", (8, 8)).save(held, "PNG")
    photo = held.getvalue() + content
    body = json.dumps({"input": {"workflow_json": load_image("photo")}})
    return [
        await target.send("POST", "/api/v2/assets", files={"file": ("a.bin", content)}, headers=key),
        await target.send("POST", "/generate", files={"photo": ("p.png", photo), "input": ("b", body)}, headers=key),
    ]


async def borrowed_tokens(target: Target) -> list[httpx.Response | None]:
    """Name model files at the operator's hub, and on ways out of its repositories."""
    path = target.chance.choice(["operator/private/resolve/main", "../api/resolve/main/whoami", "a/b/resolve/.."])
    model = {"name": "x.safetensors", "url": f"https://huggingface.co/{path}/x.safetensors", "directory": "checkpoints"}
    loader = {"id": 1, "type": "CheckpointLoaderSimple", "widgets_values": ["x.safetensors"]}
    page = {"nodes": [loader | {"properties": {"models": [model]}}], "links": []}
    return [await target.generate({"workflow_json": page}), await target.send("POST", "/plan", json=page)]


async def odd_hosts(target: Target) -> list[httpx.Response | None]:
    """Send heads with no Host and with two; none may be answered as a request."""
    hosts = target.chance.choice([b"", b"Host: a\r\nHost: b\r\n", b"Host: a, b\r\n"])
    with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
        reader, writer = await connect(target)
        writer.write(b"GET /health HTTP/1.1\r\n" + hosts + b"\r\n")
        line = await asyncio.wait_for(reader.readline(), GIVE_UP_SECONDS)
        writer.close()
        assert not line or b" 400 " in line, f"{hosts!r} was answered with {line!r}"
    return []


ASSAULTS: dict[str, Assault] = {
    assault.__name__: assault
    for assault in (
        malformed,
        oversized,
        slow,
        many_connections,
        lying_peers,
        ssrf,
        rebinding,
        traversal,
        regular_expressions,
        images,
        large_outputs,
        audio,
        model_files,
        hostile_pack,
        costly_pages,
        packed_workflows,
        hoarding,
        borrowed_tokens,
        odd_hosts,
    )
}
