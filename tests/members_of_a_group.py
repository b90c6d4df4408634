"""What each process of tests/test_processes.py does: all checks of one group in one start, which costs seconds."""

import json
import os
import signal
import sys
from pathlib import Path

import torch

import farfield as ff
from farfield.attention import local_attention, plan_attention
from farfield.attention.bisection import split_points
from farfield.processes import joined

TOLERANCE = 1e-4
TIGHT = 1e-7  # in double precision: gradients can then be compared to 1e-5


def clouds():
    """Graded in three dimensions, a grid, a periodic axis, all points with one member, fewer points than members."""
    torch.manual_seed(0)
    graded = 1000 * torch.rand(500, 3, dtype=torch.float64) ** 2
    grid = torch.cartesian_prod(torch.arange(24.0), torch.arange(16.0)).double() * 20
    line = 1000 * torch.rand(200, 1, dtype=torch.float64)
    yield "graded", graded, ff.LAAPE([90.0, 120.0, 60.0]), None, None
    yield "grid", grid, ff.LASPE([[40.0, 30.0], [20.0, 50.0]]), None, None
    yield "periodic", line, ff.LAAPE(40.0), [1000.0], None
    yield "one has all", grid, ff.ALiBi(0.05), None, 0
    yield "few", line[:2], ff.LAAPE(500.0), None, None


def attention_errors(group):
    """By cloud: the largest error of the outputs over the largest |v|, as the tolerance counts it, in single precision;
    and, with a tight tolerance in double precision, those of all gradients over the largest of one process."""
    for name, points, encoding, period, holder in clouds():
        parts = split_points(points, group.size, encoding)
        if holder is not None:
            parts = [range(len(points)) if r == holder else [] for r in range(group.size)]
        mine = torch.as_tensor(list(parts[group.rank]), dtype=torch.long)
        given = [torch.randn(1, 2, len(points), 8) for _ in range(4)]
        cloud = {"encoding": encoding, "period": period}
        (out, _), *_ = differences(group, given, points, mine, cloud | {"tolerance": TOLERANCE})
        precise = [t.double() for t in given]
        _, *gradients = differences(group, precise, points, mine, cloud | {"tolerance": TIGHT})
        largest = torch.linalg.vector_norm(given[2], dim=-1).max()
        error = float(torch.linalg.vector_norm(out, dim=-1).max() / largest) if len(mine) else 0.0
        yield name, [error, *(float(d.abs().max() / size) if len(mine) else 0.0 for d, size in gradients)]


def differences(group, given, points, mine, options):
    """Part minus whole, and the size of the whole: of the output, then of the gradients of q, k, v."""
    *tensors, slope = given

    def with_gradients(some, plan):
        leaves = [t[:, :, some].clone().requires_grad_() for t in tensors]
        out = local_attention(*leaves, points[some], plan=plan, backend="tiled", **options)
        return [out, *torch.autograd.grad(out, leaves, slope[:, :, some])]

    whole = with_gradients(slice(None), None)
    part = with_gradients(mine, plan_attention(points[mine], group=group, **options))
    return [((a - b[:, :, mine]).detach(), b.abs().max()) for a, b in zip(part, whole, strict=True)]


def training_error(group):
    """Ten steps of one domain, in parts and whole: the largest difference of any weight."""
    torch.manual_seed(1)
    points = torch.cartesian_prod(torch.arange(20.0), torch.arange(15.0)).double() * 30
    features, target = torch.randn(1, 300, 2), torch.randn(1, 300, 1)
    encoding = ff.LAAPE([[90.0, 60.0], [50.0, 80.0]], learned=True, max_decay_length=120.0)
    parts = split_points(points, group.size, encoding)
    mine = torch.from_numpy(parts[group.rank])

    def trained(some, group):
        torch.manual_seed(2)
        options = {"encoding": encoding, "width": 16, "depth": 2, "heads": 2, "backend": "tiled", "tolerance": 1e-6}
        model = ff.TransformerOperator(2, 1, 2, **options)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(10):
            optimiser.zero_grad()
            error = model(features[:, some], points[some], group=group) - target[:, some]
            (error.square().sum() / target.numel()).backward()
            if group is not None:
                for parameter in model.parameters():
                    torch.distributed.all_reduce(parameter.grad)
            optimiser.step()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    return float((trained(mine, group) - trained(slice(None), None)).abs().max())


def main(out, end):
    """All checks; then the last member is killed, or frozen."""
    torch.set_num_threads(1)
    with joined(timeout=float(os.environ["PULSE"])) as group:
        results = {"attention": dict(attention_errors(group)), "training": training_error(group)}
        results["members"] = group.gather(group.rank)
        Path(out, f"{group.rank}.json").write_text(json.dumps(results))
        group.gather("all have written")
        if group.rank == group.size - 1:
            os.kill(os.getpid(), {"killed": signal.SIGKILL, "frozen": signal.SIGSTOP}[end])
        group.exchange(torch.zeros(group.size, 1), [1] * group.size, [1] * group.size)


if __name__ == "__main__":
    main(*sys.argv[1:])
