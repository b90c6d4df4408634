"""Short trainings of Gray-Scott on whole domains: what each setting is worth at equal CPU time.

    python benchmarks/gray_scott_trials.py DATA results/ablations/gray_scott_patches.csv name=base minutes=8 patch=4 ...

One process, one thread, bfloat16 where the processor has it. The rate follows the CPU time, so that every trial ends
its schedule at the same cost. A row has the setting, what it cost, and the relative L1 errors of the first 24
simulations of the validation split, for U and V and by state, and after nine steps fed back.
"""

from __future__ import annotations

import copy
import csv
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from farfield.attention import LAAPE, LASPE, RoPE
from farfield.bench.peers import UNet
from farfield.data.generated import Split, open_split
from farfield.data.standardise import read_statistics
from farfield.models.tokens import PatchTokens
from farfield.models.transformer_operator import TransformerOperator
from farfield.training.muon import Muon

SETTINGS: dict[str, Any] = {
    "name": "base",
    "net": "patches",
    "minutes": 8.0,
    "encoding": "laape",
    "patch": 4,
    "overlap": -1,
    "width": 128,
    "depth": 6,
    "heads": 4,
    "lengths": [3.0, 4.0, 5.0, 5.0],
    "wavelengths": [8.0, 64.0],
    "levels": [],
    "expansion": 4,
    "features": 24,
    "tolerance": 1e-3,
    "optimiser": "adamw",
    "rate": 2e-3,
    "decay": 0.05,
    "clip": 1.0,
    "batch": 4,
    "loss": "l1",
    "late": 0.0,
    "average": 0.995,
    "symmetries": True,
    "noise": 0.0,
    "bfloat16": True,
    "seed": 0,
}


def build(c: dict[str, Any]) -> nn.Module:
    torch.manual_seed(c["seed"])
    if c["net"] == "unet":
        return UNet(4, 2, 2, c["features"]).to(memory_format=torch.channels_last)
    rotary = RoPE(c["wavelengths"][1], c["wavelengths"][0])
    lengths = [[length] * 2 for length in c["lengths"]]
    encoding = {
        "rope": lambda: rotary,
        "laspe": lambda: LASPE(lengths, rotary=rotary),
        "laape": lambda: LAAPE(lengths, rotary=rotary),
    }[c["encoding"]]()
    overlap = None if c["overlap"] < 0 else c["overlap"]
    tokens = PatchTokens(c["patch"], 1.0, overlap, False, tuple(c["levels"]))
    return TransformerOperator(
        4, 2, 2, encoding=encoding, width=c["width"], depth=c["depth"], expansion=c["expansion"], heads=c["heads"],
        tokens=tokens, tolerance=c["tolerance"],
    )  # fmt: skip


def optimisers(net: nn.Module, c: dict[str, Any]) -> list[torch.optim.Optimizer]:
    matrices = [p for p in net.parameters() if p.ndim >= 2]
    rest = [p for p in net.parameters() if p.ndim < 2]
    found: list[torch.optim.Optimizer] = []
    if c["optimiser"] == "muon":
        inner = [p for p in matrices if min(p.shape[:2]) >= 16]
        found.append(Muon(inner, c["rate"], c["decay"], dtype=torch.bfloat16 if c["bfloat16"] else torch.float32))
        taken = {id(p) for p in inner}
        matrices = [p for p in matrices if id(p) not in taken]
    groups = [{"params": matrices, "weight_decay": c["decay"]}, {"params": rest, "weight_decay": 0.0}]
    return [*found, torch.optim.AdamW(groups, lr=c["rate"], betas=(0.9, 0.98))]


def relative(error: Tensor, truth: Tensor) -> Tensor:
    return error.abs().sum((2, 3)) / truth.abs().sum((2, 3))


class Trial:
    def __init__(self, data: Path, c: dict[str, Any]):
        self.c = c
        statistics = read_statistics(data)
        get = lambda kind: torch.tensor([statistics[kind][f] for f in ("U", "V")]).view(2, 1, 1)  # noqa: E731
        self.mean, self.std, self.spread = get("mean"), get("std"), get("std_delta")
        self.net = build(c)

    def change(self, net: Any, state: Tensor) -> Tensor:
        """(B, 2, n, n) -> the change over one saved step, physical."""
        flags = torch.zeros(1, 2, *state.shape[2:])
        flags[:, 0, [0, -1]] = 1
        flags[:, 1, :, [0, -1]] = 1
        x = torch.cat([(state - self.mean) / self.std, flags.expand(len(state), -1, -1, -1)], 1)
        return (net(x) if self.c["net"] == "unet" else net.on_grid(x)).float() * self.spread

    @torch.no_grad()
    def errors(self, net: nn.Module, split: Split, simulations: int) -> np.ndarray:
        """(simulations, pairs, fields)"""
        found = []
        for i in range(simulations):
            states = torch.from_numpy(split.grids(i))
            with torch.autocast("cpu", torch.bfloat16, enabled=self.c["bfloat16"]):
                predicted = self.change(net, states[:-1])
            found.append(relative(predicted - states.diff(dim=0), states.diff(dim=0)).numpy())
        return np.stack(found)

    @torch.no_grad()
    def rollouts(self, net: nn.Module, split: Split, simulations: int) -> np.ndarray:
        """(simulations, fields): nine predictions fed back, over the true change since the first state."""
        states = torch.from_numpy(np.stack([split.grids(i) for i in range(simulations)]))
        now = states[:, 0]
        for _ in range(9):
            with torch.autocast("cpu", torch.bfloat16, enabled=self.c["bfloat16"]):
                now = now + self.change(net, now)
        return relative(now - states[:, 9], states[:, 9] - states[:, 0]).numpy()

    def train(self, split: Split) -> tuple[nn.Module, int, float]:
        c, net = self.c, self.net
        average = copy.deepcopy(net).requires_grad_(False)
        opts = optimisers(net, c)
        rng = np.random.default_rng(c["seed"])
        odds = 1 + c["late"] * np.arange(10) / 9
        odds /= odds.sum()
        step, smooth, told = 0, None, 0.0
        began = time.process_time()
        while (progress := (time.process_time() - began) / (60 * c["minutes"])) < 1:
            rate = c["rate"] * min(1, (step + 1) / 100) * (0.005 + 0.995 * 0.5 * (1 + math.cos(math.pi * progress)))
            for opt in opts:
                for group in opt.param_groups:
                    group["lr"] = rate
            pairs = [
                split.grids(int(rng.integers(len(split))), slice(t, t + 2)) for t in rng.choice(10, c["batch"], p=odds)
            ]
            batch = torch.from_numpy(np.stack([turned(p, rng) if c["symmetries"] else p for p in pairs]))
            now, change = batch[:, 0], batch[:, 1] - batch[:, 0]
            if c["noise"]:
                now = now + c["noise"] * self.spread * torch.randn_like(now)
            with torch.autocast("cpu", torch.bfloat16, enabled=c["bfloat16"]):
                predicted = self.change(net, now)
            error = predicted - change
            if c["loss"] == "l1":
                loss = relative(error, change).mean()
            elif c["loss"] == "l2":
                loss = (error.square().sum((2, 3)) / change.square().sum((2, 3))).sqrt().mean()
            else:  # "sum": both fields and items by their own size, then the logarithm
                loss = relative(error, change).clamp(min=1e-3).log().mean()
            for opt in opts:
                opt.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), c["clip"])
            for opt in opts:
                opt.step()
            step += 1
            share = 1 - min(c["average"], (1 + step) / (10 + step))
            with torch.no_grad():
                torch._foreach_lerp_(list(average.parameters()), list(net.parameters()), share)
            value = float(relative(error.detach(), change).mean())
            smooth = value if smooth is None else 0.98 * smooth + 0.02 * value
            if progress - told > 0.05:
                told = progress
                print(f"{progress:5.0%} step {step} L1 {smooth:.3f}", flush=True)
        return average, step, time.process_time() - began


def turned(pair: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """One of the square's eight symmetries."""
    if rng.random() < 0.5:
        pair = pair[..., ::-1, :]
    if rng.random() < 0.5:
        pair = pair[..., ::-1]
    return pair.swapaxes(-1, -2) if rng.random() < 0.5 else pair


def main() -> None:
    data, out = Path(sys.argv[1]), Path(sys.argv[2])
    c = dict(SETTINGS)
    for given in sys.argv[3:]:
        key, text = given.split("=", 1)
        c[key] = text if isinstance(SETTINGS[key], str) else json.loads(text)
    torch.set_num_threads(1)
    trial = Trial(data, c)
    weights = sum(p.numel() for p in trial.net.parameters())
    print(c, f"{weights / 1e6:.2f} M weights", flush=True)
    train, validation = (open_split(data, name) for name in ("train", "validation"))
    train.preload(2**31)
    average, steps, seconds = trial.train(train)
    began = time.process_time()
    small = trial.errors(average, validation, 24)
    per_state = (time.process_time() - began) / 240
    fed_back = trial.rollouts(average, validation, 24).mean(0)
    row = {
        "name": c["name"],
        "changed": " ".join(f"{k}={v}" for k, v in c.items() if v != SETTINGS[k] and k != "name"),
        "weights": weights,
        "steps": steps,
        "items": steps * c["batch"],
        "cpu_seconds": round(seconds),
        "u_s1": round(100 * float(small[..., 0].mean()), 2),
        "v_s1": round(100 * float(small[..., 1].mean()), 2),
        "u_nine_steps": round(100 * float(fed_back[0]), 2),
        "v_nine_steps": round(100 * float(fed_back[1]), 2),
        "u_by_state_s1": " ".join(f"{100 * e:.1f}" for e in small[..., 0].mean(0)),
        "seconds_per_state": round(per_state, 3),
    }
    print(row, flush=True)
    new = not out.exists()
    with out.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
    torch.save(average.state_dict(), out.with_name(f"{c['name']}.pt"))


if __name__ == "__main__":
    main()
