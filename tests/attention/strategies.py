"""Random attention problems over awkward shapes, shared by the tests of all backends."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

import farfield as ff

NAMES = ("rope", "laspe", "laape", "laape-asymmetric", "flashbias", "alibi", "window")
DECOMPOSING = NAMES[:5]


@dataclass
class Problem:
    """One call of local_attention, with everything that it needs."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    query_positions: torch.Tensor
    key_positions: torch.Tensor | None
    encoding: ff.Encoding

    def attend(self, **options):
        return ff.local_attention(
            self.q, self.k, self.v, self.query_positions, self.key_positions, encoding=self.encoding, **options
        )

    def leaves(self):
        return [self.q, self.k, self.v, *self.encoding.parameters()]


def random_basis(space_dim, generator):
    return torch.linalg.qr(torch.randn(space_dim, space_dim, generator=generator, dtype=torch.float64))[0]


def make_encoding(name, space_dim, heads, head_dim, per, rotated, generator):
    def lengths():
        shape = {"one": (), "axis": (space_dim,), "head": (heads, space_dim)}[per]
        return 60 + 200 * torch.rand(shape, generator=generator)

    basis = random_basis(space_dim, generator) if rotated else None
    match name:
        case "rope":
            return ff.RoPE()
        case "laspe":
            return ff.LASPE(lengths(), basis=basis)
        case "laape":
            return ff.LAAPE(lengths(), basis=basis)
        case "laape-asymmetric":
            return ff.LAAPE(decay_length_plus=lengths(), decay_length_minus=lengths(), basis=basis)
        case "flashbias":
            encoding = ff.FlashBias(150.0, heads, head_dim)
            torch.nn.init.normal_(encoding.weight, std=0.3, generator=generator)
            return encoding
        case "alibi":
            return ff.ALiBi(0.02, rotary=None)
        case "window":
            return ff.Window(180.0)
    raise AssertionError(name)


@st.composite
def problems(draw, names=NAMES, dtype=torch.float32, max_points=40, width=1000.0):
    space_dim = draw(st.integers(1, 3), "space_dim")
    heads = draw(st.integers(1, 3), "heads")
    head_dim = draw(st.sampled_from([2, 5, 8, 14, 16]), "head_dim")
    batch = draw(st.integers(1, 3), "batch")
    queries, keys = draw(st.integers(1, max_points), "queries"), draw(st.integers(1, max_points), "keys")
    cross = draw(st.booleans(), "cross")
    batched_positions = draw(st.booleans(), "batched positions")
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**16), "seed"))
    name = draw(st.sampled_from(names), "encoding")
    encoding = make_encoding(
        name, space_dim, heads, head_dim, draw(st.sampled_from(["one", "axis", "head"])), draw(st.booleans()), generator
    )
    keys = keys if cross else queries

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=dtype)

    def points(count):
        shape = (batch, count, space_dim) if batched_positions else (count, space_dim)
        return width * torch.rand(shape, generator=generator, dtype=dtype)

    where = points(queries)
    return Problem(
        q=normal(batch, heads, queries, head_dim),
        k=normal(batch, heads, keys, head_dim),
        v=normal(batch, heads, keys, head_dim),
        query_positions=where,
        key_positions=points(keys) if cross else None,
        encoding=encoding.to(dtype),
    )


def relative_error(result, expected):
    return ((result - expected).norm() / expected.norm()).item()
