"""Clouds made to break the tolerance of tiled attention: does it hold on each of them, for every query?

    python benchmarks/adversarial_attention.py [clouds] [first seed] [--json FILE] [--markdown FILE]

With ``--json`` it goes on where the file ends, if that was measured with the same code. A cloud takes about a tenth
of a CPU second.

Each seed draws a cloud (uniform, spots in an empty field, graded over six orders of magnitude, on a line, queries far
from every key), 1 to 3 axes, an encoding, decay lengths that may be spread a thousand times over heads and axes, and
queries and keys times 1, 4 or 20, some with a few keys that stand out; and tiles of some size, small ones too, so that
small clouds have many of them, which add up far keys or read them. The tiled backend, at tolerances 1e-2 and 1e-4
in float32, by its compiled kernel where that serves and by rounds of the fused one, and at 1e-6 in float64, is
compared with the formula in float64, query by query:

    error over tolerance = max over queries of |out - exact| / (tolerance V),

V as the certificate promises it: the query's own mean size of values, sum_j p_ij |v_j| by the formula, or tolerance
times the largest |v| of the head, if that is more. Prints the worst ratio by encoding and tolerance.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import warnings
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

import farfield as ff
from farfield.attention import rounds, sounding, tiled
from farfield.bench import LEADS

ENCODINGS = ("rope", "laspe", "laape", "laape-asymmetric", "flashbias", "alibi", "window")
CLOUDS = ("uniform", "spots", "graded", "line", "far")
TOLERANCES = ((1e-2, torch.float32), (1e-4, torch.float32), (1e-6, torch.float64))


@dataclass
class Case:
    """One adversarial problem, in float64."""

    description: str
    encoding_name: str
    encoding: ff.Encoding
    q: Tensor
    k: Tensor
    v: Tensor
    queries: Tensor
    keys: Tensor | None
    tiles: dict[str, int | None]
    sounding: bool  # whether far keys are added up however few they are; else small tiles read them instead

    def attend(self, dtype: torch.dtype, **options: object) -> Tensor:
        q, k, v = (t.to(dtype) for t in (self.q, self.k, self.v))
        return ff.local_attention(q, k, v, self.queries, self.keys, encoding=self.encoding, **options)  # type: ignore[arg-type]


def draw_case(seed: int, most: int = 400) -> Case:
    """The problem of a seed, with at most so many points."""
    generator = torch.Generator().manual_seed(seed)

    def pick(*choices):  # type: ignore[no-untyped-def]
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64)

    space_dim, heads, head_dim = pick(1, 2, 3), pick(1, 2, 3), pick(4, 8, 16, 32)
    count, cross = min(most, pick(1, 70, 300, 700, 1100, 2000)), pick(True, False)
    name, shape, scale = pick(*ENCODINGS), pick(*CLOUDS), pick(1.0, 4.0, 20.0)
    width = 1000.0
    length = width * 10 ** float(-2.5 * uniform() + 0.2)
    lengths = length * 10 ** (3 * uniform(heads, space_dim) - 1.5) if pick(True, False) else torch.tensor(length)

    def cloud(n: int) -> Tensor:
        if shape == "spots":
            middles = width * uniform(4, space_dim)
            return middles[torch.randint(4, (n,), generator=generator)] + 0.01 * width * normal(n, space_dim)
        if shape == "graded":
            return width * 10 ** (-6 * uniform(n, 1)) * normal(n, space_dim) / 3
        if shape == "line":
            return width * uniform(n, 1) * torch.ones(space_dim, dtype=torch.float64) + 1e-3 * normal(n, space_dim)
        return width * uniform(n, space_dim)

    queries = cloud(count)
    keys = cloud(min(most, pick(1, 64, 300, 800, 1500))) if cross or shape == "far" else None
    if shape == "far":
        away = normal(1, space_dim)
        queries = queries + away / away.norm() * length * 10 ** float(0.7 + 1.7 * uniform())
    number = count if keys is None else len(keys)
    q, k, v = (normal(1, heads, n, head_dim) for n in (count, number, number))
    q, k = scale * q, scale * k
    if pick(True, False):  # a few keys and values stand out, and some queries ask for them
        rare = torch.randint(number, (max(1, number // 100),), generator=generator)
        k[:, :, rare] *= 3
        v[:, :, rare] *= pick(1.0, 100.0)
        asked = torch.randint(count, (max(1, count // 50),), generator=generator)
        q[:, :, asked] = k[:, :, rare[torch.randint(len(rare), (len(asked),), generator=generator)]]
    rotary = pick(None, ff.RoPE(), ff.RoPE(2 * width, width / 50))
    if name == "rope":
        encoding: ff.Encoding = ff.RoPE()
    elif name == "laspe":
        encoding = ff.LASPE(lengths, rotary=rotary)
    elif name == "laape":
        encoding = ff.LAAPE(lengths, rotary=rotary)
    elif name == "laape-asymmetric":
        encoding = ff.LAAPE(decay_length_plus=lengths, decay_length_minus=lengths * pick(0.2, 3.0), rotary=rotary)
    elif name == "flashbias":
        encoding = ff.FlashBias(length, heads, head_dim, rotary=rotary)
        torch.nn.init.normal_(encoding.weight, std=0.3 / scale, generator=generator)
    elif name == "alibi":
        encoding = ff.ALiBi(1 / length, rotary=rotary)
    else:
        encoding = ff.Window(2 * length, rotary=rotary)
    # float32 holds what all precisions are given
    given = [t.float().double() for t in (q, k, v, queries)] + [None if keys is None else keys.float().double()]
    described = f"{seed}: {name}, {shape}, {space_dim}D, {count} x {number}, scale {scale:g}, length {length:.3g}"
    tiles = {"query_tile": pick(None, 64, 128), "key_tile": pick(None, 16)}
    return Case(described, name, encoding.double(), *given, tiles, pick(True, False))  # type: ignore[arg-type]


def exactly(case: Case) -> tuple[Tensor, Tensor]:
    """The formula's outputs (B, H, N, D), and the mean size of the values that each query attends to (B, H, N)."""
    with_sizes = replace(case, v=torch.cat([case.v, case.v.norm(dim=-1, keepdim=True)], dim=-1))
    out = with_sizes.attend(torch.float64, backend="reference")
    return out[..., :-1], out[..., -1]


def ratio(
    case: Case,
    exact: tuple[Tensor, Tensor],
    tolerance: float,
    dtype: torch.dtype,
    backend: str = "tiled",
    in_rounds: bool = False,
) -> float:
    """The largest error of a query over what the tolerance allows it; ``in_rounds``: not by the compiled kernel."""
    plan = None
    if backend == "tiled":
        plan = ff.plan_attention(
            case.queries,
            case.keys,
            encoding=case.encoding,
            tolerance=tolerance,
            **case.tiles,  # type: ignore[arg-type]
        )
    with ExitStack() as small:
        if case.sounding:  # whatever it spares, and by parts and portions small enough that small clouds have many
            small.enter_context(mock.patch.object(rounds, "WORTH_SOUNDING", -1e9))
            small.enter_context(mock.patch.object(sounding, "_ROWS", 64))
            small.enter_context(mock.patch.object(sounding, "_TILES", 4))
        if in_rounds:
            small.enter_context(mock.patch.object(tiled, "serves", return_value=False))
        out = case.attend(dtype, backend=backend, tolerance=tolerance, plan=plan).double()
    expected, sizes = exact
    allowed = tolerance * torch.maximum(sizes, tolerance * case.v.norm(dim=-1).amax(-1, keepdim=True))
    error = (out - expected).norm(dim=-1)
    return float(torch.where(error > 0, error / allowed, 0.0).max()) if error.numel() else 0.0


def code() -> str:
    """What the attention that is measured, and this script, are told by."""
    sources = [Path(__file__), *sorted(Path(rounds.__file__).parent.glob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()[:16]


def measure(clouds: int, first: int = 0, file: Path | None = None) -> dict[str, dict[str, float]]:
    """The worst ratio by encoding and tolerance; cases above 1 are printed. What ``file`` holds is not done again."""
    worst: dict[str, dict[str, float]] = {name: {"clouds": 0, "above": 0} for name in ENCODINGS}
    measured = code()
    if file is not None and file.exists():
        before = json.loads(file.read_text())
        if before.get("code") != measured:
            raise SystemExit(f"{file} was measured with other code: remove it, or give another file")
        worst = before["rows"]
    done = sum(int(row["clouds"]) for row in worst.values())
    for seed in range(first + done, first + clouds):
        case = draw_case(seed)
        exact = exactly(case)
        row = worst[case.encoding_name]
        row["clouds"] += 1
        for tolerance, dtype in TOLERANCES:
            ways = (False, True) if dtype == torch.float32 else (True,)
            found = max(ratio(case, exact, tolerance, dtype, in_rounds=way) for way in ways)
            row[f"{tolerance:g}"] = max(row.get(f"{tolerance:g}", 0.0), found)
            if not found <= 1:
                row["above"] += 1
                print(f"  above the tolerance {tolerance:g} by {found:.3g}: {case.description}", flush=True)
        if file is not None and (seed % 50 == 49 or seed == first + clouds - 1):
            part = file.with_suffix(".part")
            part.write_text(json.dumps({"code": measured, "rows": worst}, indent=1))
            part.replace(file)
            print(f"{seed + 1 - first} of {clouds}, {time.process_time():.0f} CPU seconds", flush=True)
    return worst


def table(worst: dict[str, dict[str, float]]) -> str:
    """The ratios as Markdown."""
    names = [f"{tolerance:g}" for tolerance, _ in TOLERANCES]
    lines = ["| encoding | clouds | " + " | ".join(names) + " | above |", "|" + "---|" * (3 + len(names))]
    for name, row in worst.items():
        cells = [f"{row[t]:.2g}" if t in row else "" for t in names]
        lines.append(f"| {name} | {row['clouds']} | " + " | ".join(cells) + f" | {row['above']} |")
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("clouds", type=int, nargs="?", default=10_000)
    parser.add_argument("first", type=int, nargs="?", default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")  # of wavelengths that do not fit, on purpose
    torch.set_num_threads(1)
    with torch.no_grad():
        rows = measure(arguments.clouds, arguments.first, arguments.json)
    total, above = (sum(int(row[key]) for row in rows.values()) for key in ("clouds", "above"))
    text = (
        LEADS["adversarial_attention"] + "\n\n"
        f"`python benchmarks/adversarial_attention.py`: {total} clouds, the largest error of a query over its "
        f"tolerance by encoding and tolerance (1e-06 in float64); {above} above.\n\n" + table(rows) + "\n"
    )
    print(text)
    if arguments.markdown:
        arguments.markdown.write_text(text)
