"""The table of `benchmark/gpu.py`: figures beside their goals, the card's floor, and peers of the same call. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmark.goals import at
from benchmark.gpu_floors import PUBLISHED_TFLOPS, TFLOP

Parts = Mapping[str, Any]
Find = Callable[[Parts], float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """One figure of the table.

    `peers` are the same figure of others, by name. `work` is the work whose operations give its floor: a rate's is the
    most a second, a time's the least. One with a `goal` is met when it is at least that, or at most where it is a time.
    """

    label: str
    unit: str
    find: Find
    goal: float | None = None
    is_time: bool = False
    work: str | None = None
    peers: Mapping[str, Find] = ()  # type: ignore[assignment]
    peer_goal: float | None = 1.5


@dataclass(frozen=True, slots=True)
class Row:
    """A line with its numbers. Ratios are above 1 where ours is better; `of_floor` is the share of what is possible."""

    label: str
    unit: str
    value: float | None
    goal: str
    is_met: bool | None
    by_goal: float | None
    of_floor_measured: float | None
    of_floor_790: float | None
    peers: Mapping[str, float]
    by_peers: Mapping[str, float]


def figure(part: str, *path: str | int) -> Find:
    """Return the function that finds a figure of a part."""
    return at(part, "figures", *path)


MOST_ERROR, MOST_DRAFT_ERROR = 0.05, 0.25  # of latents, relative L2: rounding in 16 bits, and quality `draft`


def best(part: str, *path: str, key: str, most_error: float = MOST_ERROR) -> Find:
    """Return the function that finds the largest `key` among the ways of a figure, of those that ran and are right.

    A way whose latent is not finite, or further from the plain one than `most_error`, is none.
    """

    def find(parts: Parts) -> float | None:
        try:
            ways = parts[part]["figures"]
            for name in path:
                ways = ways[name]
        except (KeyError, TypeError):
            return None
        if not isinstance(ways, Mapping):
            return None
        found = [
            way[key]
            for way in ways.values()
            if isinstance(way, Mapping) and isinstance(way.get(key), (int, float)) and is_right(way, most_error)
        ]
        return float(max(found)) if found else None

    return find


def draft(part: str, *path: str, key: str) -> Find:
    """Return the function that finds the largest `key` among ways whose latents may be as far off as a draft's."""
    return best(part, *path, key=key, most_error=MOST_DRAFT_ERROR)


def is_right(way: Mapping[str, Any], most_error: float) -> bool:
    """Return True where a way's latent is finite and near the plain one; an error that is no number is too large."""
    error = way.get("error", 0.0)
    return bool(way.get("is_finite", True)) and isinstance(error, (int, float)) and error <= most_error


def inverse(find: Find) -> Find:
    """Return the function that finds a rate as the time of one."""

    def found(parts: Parts) -> float | None:
        value = find(parts)
        return 1.0 / value if value else None

    return found


def both(first: Find, second: Find, join: Callable[[float, float], float]) -> Find:
    """Return the function that joins two figures; None without both."""

    def find(parts: Parts) -> float | None:
        left, right = first(parts), second(parts)
        return None if left is None or not right else join(left, right)

    return find


def ratio(first: Find, second: Find) -> Find:
    """Return the function that divides two figures."""
    return both(first, second, lambda left, right: left / right)


def rate(*path: str) -> Find:
    return figure(*path, "it_per_s")


def comfyui(work: str, way: str = "plain") -> Find:
    return figure("peer_comfyui", work, way, "it_per_s")


def diffusers(work: str, way: str) -> Find:
    return figure("peer_diffusers", work, way, "it_per_s")


SD15_PEERS = {
    "ComfyUI": comfyui("sd15_512"), "ComfyUI --fast": comfyui("sd15_512", "fast"),
    "diffusers": diffusers("sd15_512", "eager"), "diffusers compiled": diffusers("sd15_512", "compiled"),
}  # fmt: skip
SDXL_PEERS = {"ComfyUI": comfyui("sdxl_1024"), "ComfyUI --fast": comfyui("sdxl_1024", "fast")}
FLUX_PEERS = {
    "ComfyUI": inverse(comfyui("flux_1024")), "diffusers": inverse(diffusers("flux_1024", "eager")),
    "diffusers compiled": inverse(diffusers("flux_1024", "compiled")),
}  # fmt: skip
FLUX_FP8_PEERS = {"ComfyUI --fast": inverse(comfyui("flux_1024_fp8", "fast"))}

LINES: Sequence[Line] = (
    Line("bf16 product, 8192³", "TFLOP/s", figure("machine", "matrix", "bfloat16_tflops")),
    Line("copy on the device", "GB/s", figure("machine", "copy", "device_gb_per_s")),
    Line("SD1.5 512², plain", "it/s", rate("sd15", "batch_1", "plain"), work="sd15_512",
         peers=SD15_PEERS, peer_goal=None),
    Line("SD1.5 512², best", "it/s", best("sd15", "batch_1", key="it_per_s"), 130, work="sd15_512", peers=SD15_PEERS),
    Line("SD1.5 512², batch of 4, best", "it/s", best("sd15", "batch_4", key="it_per_s"), 60, work="sd15_512_batch_4"),
    Line("SD1.5 512², tuned (`same`)", "it/s", figure("tuning", "choices", "same", "it_per_s"), 130, work="sd15_512"),
    Line("SDXL 1024², plain", "it/s", rate("sdxl", "batch_1", "plain"), work="sdxl_1024",
         peers=SDXL_PEERS, peer_goal=None),
    Line("SDXL 1024², best", "it/s", best("sdxl", "batch_1", key="it_per_s"), 26, work="sdxl_1024", peers=SDXL_PEERS),
    Line("decoding 512²", "s", figure("sd15", "vae", "seconds"), is_time=True, work="sd15_vae_512"),
    Line("decoding 1024²", "s", figure("sdxl", "vae", "seconds"), is_time=True, work="sdxl_vae_1024"),
    Line("Flux.1-dev 1024², plain", "s/step", inverse(rate("flux", "bfloat16", "plain")), is_time=True,
         work="flux_1024", peers=FLUX_PEERS, peer_goal=None),
    Line("Flux.1-dev 1024², best bf16", "s/step", inverse(best("flux", "bfloat16", key="it_per_s")), 0.15,
         is_time=True, work="flux_1024", peers=FLUX_PEERS),
    Line("Flux.1-dev 1024², float8 products", "s/step", inverse(draft("flux", "float8", key="it_per_s")), 0.106,
         is_time=True, peers=FLUX_FP8_PEERS),
    Line("float8 weights kept, times bf16", "x", ratio(draft("flux", "float8_kept", key="it_per_s"),
         best("flux", "bfloat16", key="it_per_s")), 1.0),
    Line("Wan 1.3B 832x480x33, best", "s/step", inverse(best("wan", "wan_480p_33", key="it_per_s")), 0.46, is_time=True,
         work="wan_480p_33"),
    Line("Wan 2.2 5B 1280x704x25, best", "s/step", inverse(best("wan", "wan22_720p_25", key="it_per_s")), is_time=True,
         work="wan22_720p_25"),
    Line("file to the device, warm", "GB/s", figure("load", "file_to_device", "warm_gb_per_s"), 5.0),
    Line("file to the device, cold", "GB/s", figure("load", "file_to_device", "cold_gb_per_s")),
    Line("start to the first image", "s", figure("load", "start", "first_image_seconds"), is_time=True),
    Line("SDXL out of the device", "s", figure("load", "eviction", "out_seconds"), is_time=True),
    Line("SDXL back", "s", figure("load", "eviction", "back_seconds"), is_time=True),
    Line("eight clients, shared, times one at a time", "x", figure("eight", "ratio"), 1.0),
    Line("eight clients at quality `close`, times one at a time", "x", figure("eight", "close_ratio"), 1.0),
    Line("a lone request, shared, times alone", "x", figure("eight", "lone_ratio"), 1.0),
    Line("networks captured, of those tried", "share", figure("capture", "share_captured"), 1.0),
    Line("networks with graphs with the plain path's bits", "share", figure("capture", "share_equal"), 1.0),
    Line("captures with torch audio afterwards", "share", figure("capture", "share_sound"), 1.0),
    Line("families like the CPU in float32", "share", figure("families", "share_float32"), 1.0),
    Line("families finite in their own types", "share", figure("families", "share_default"), 1.0),
    Line("memory modes with equal bits", "share", figure("memory", "share_equal"), 1.0),
    Line("out of memory recovered", "share", figure("memory", "share_recovered"), 1.0),
    Line("tests/gpu passed", "share", figure("memory", "share_tests"), 1.0),
    Line("engine idle while jobs wait", "share", figure("front", "idle_share"), 0.02, is_time=True),
)  # fmt: skip


def rows_of(parts: Parts, *, is_toy: bool) -> list[dict[str, Any]]:
    """Return the lines that have a figure, with what it is compared with; a toy's figures are compared with nothing."""
    measured = figure("machine", "matrix", "bfloat16_tflops")(parts)
    lines = [replace(line, goal=None, work=None) for line in LINES] if is_toy else LINES
    rows = [row_of(line, parts, measured) for line in lines]
    return [asdict(row) for row in rows if row.value is not None]


def row_of(line: Line, parts: Parts, measured_tflops: float | None) -> Row:
    value = line.find(parts)
    peers = {name: found for name, find in dict(line.peers).items() if (found := find(parts)) is not None}
    goal, is_met, by_goal = "–", None, None
    if line.goal is not None:
        goal = f"{'≤' if line.is_time else '≥'} {line.goal:g}"
        by_goal = None if value is None else better(value, line.goal, is_time=line.is_time)
        is_met = None if by_goal is None else by_goal >= 1.0
    by_peers = {} if value is None else {n: better(value, other, is_time=line.is_time) for n, other in peers.items()}
    if (
        is_met
        and line.peer_goal is not None
        and any(by < line.peer_goal for n, by in by_peers.items() if n == "ComfyUI")
    ):
        is_met = False
    floors = [share_of_floor(line, value, tflops) for tflops in (measured_tflops, PUBLISHED_TFLOPS)]
    return Row(line.label, line.unit, value, goal, is_met, by_goal, floors[0], floors[1], peers, by_peers)


def better(value: float, other: float, *, is_time: bool) -> float:
    """Return the factor by which a figure is better than another."""
    first, second = (other, value) if is_time else (value, other)
    return first / second if second else 0.0


def share_of_floor(line: Line, value: float | None, tflops: float | None) -> float | None:
    """Return the share of a rate's operations that the work makes use of; None without a floor."""
    if line.work is None or not value or not tflops:
        return None
    per_second = 1.0 / value if line.is_time else value
    return per_second * TFLOP[line.work] / tflops


def table(report: Mapping[str, Any]) -> str:
    """Return the report as Markdown: the figures, then what failed, part by part."""
    where = report["device"] or "?"
    where = f"{where}: toy sizes, the figures mean nothing" if report["is_toy"] else where
    lines = [
        f"{where}; {report['total_seconds']:.0f} s of {report['minutes'] * 60:.0f}", "",
        "| What | Figure | Goal | Met | of goal | of floor (measured) | of floor (790) | beside peers |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]  # fmt: skip
    for row in report["rows"]:
        met = {True: "yes", False: "no", None: "–"}[row["is_met"]]
        beside = ", ".join(f"{by:.2f} x {name} ({short(row['peers'][name])})" for name, by in row["by_peers"].items())
        shares = [percent(row[name]) for name in ("of_floor_measured", "of_floor_790")]
        by_goal = "–" if row["by_goal"] is None else f"{row['by_goal']:.2f} x"
        lines.append(
            f"| {row['label']} | {short(row['value'])} {row['unit']} | {row['goal']} | {met} | {by_goal} | "
            f"{shares[0]} | {shares[1]} | {beside or '–'} |"
        )
    lines.append("")
    for name, entry in report["parts"].items():
        is_odd = bool(entry.get("is_toy")) and not report["is_toy"]
        lines += part_lines(name, entry, "; it saw no GPU, and is left out of the table" if is_odd else "")
    return "\n".join(lines)


MAX_FAILURES, MAX_FAILURE_CHARACTERS = 6, 160


def part_lines(name: str, entry: Mapping[str, Any], remark: str = "") -> list[str]:
    """Return the lines of a part: its end, and the first of its failures."""
    state = entry["reason"] or entry["status"]
    lines = [f"- `{name}`: {state}, {entry['seconds']:.0f} s{remark}"]
    failures = list(entry["failures"].items())
    for label, text in failures[:MAX_FAILURES]:
        lines.append(f"  - {label}: {' '.join(text.split())[:MAX_FAILURE_CHARACTERS]}")
    if len(failures) > MAX_FAILURES:
        lines.append(f"  - and {len(failures) - MAX_FAILURES} more, in gpu.json")
    return lines


def short(value: float) -> str:
    return f"{value:.4g}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"
