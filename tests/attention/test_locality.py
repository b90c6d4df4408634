import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import farfield as ff
from farfield.attention.rotary import axial_frequencies
from farfield.studies.kernels import draw_kernel_shapes, half_width

LENGTHS = st.floats(1.0, 1000.0)


def test_the_potentials_are_the_papers_formulas():
    delta = torch.tensor([[30.0, -40.0], [0.0, 0.0], [250.0, 500.0]], dtype=torch.float64)
    x, y = delta.T
    assert torch.allclose(ff.LASPE([100.0, 200.0]).potential(delta), 0.5 * ((x / 100) ** 2 + (y / 200) ** 2))
    laape = ff.LAAPE(decay_length_plus=[100.0, 200.0], decay_length_minus=[50.0, 400.0])
    expected = 0.5 * ((x / 50).exp() + (-x / 100).exp() + (y / 400).exp() + (-y / 200).exp())
    assert torch.allclose(laape.potential(delta), expected)
    assert torch.allclose(ff.ALiBi(0.1).potential(delta), 0.1 * (x.abs() + y.abs()))
    assert ff.Window(70.0).potential(delta).tolist() == [0.0, 0.0, math.inf]
    assert ff.RoPE().potential(delta).tolist() == [0.0, 0.0, 0.0]


@given(LENGTHS, st.integers(1, 3), st.floats(0.001, 0.05))
def test_laape_is_laspe_plus_p_for_small_displacements(length, space_dim, fraction):
    delta = fraction * length * torch.ones(space_dim, dtype=torch.float64)
    laape, laspe = ff.LAAPE(length).potential(delta), ff.LASPE(length).potential(delta)
    # the next term of cosh is delta^4 / 24 l^4 per axis
    assert float(laape - laspe - space_dim) == pytest.approx(space_dim * fraction**4 / 24, rel=1e-2, abs=1e-13)


@given(LENGTHS, LENGTHS)
def test_the_minimum_of_an_asymmetric_laape_lies_at_delta_star(plus, minus):
    encoding = ff.LAAPE(decay_length_plus=plus, decay_length_minus=minus)
    star = math.log(minus / plus) / (1 / minus + 1 / plus)
    assert float(encoding.centre(1)[0]) == pytest.approx(star, rel=1e-5, abs=1e-4)
    around = star + torch.linspace(-50, 50, 1001, dtype=torch.float64)[:, None]
    assert float(around[encoding.potential(around).argmin()]) == pytest.approx(star, abs=0.1)
    assert float(encoding.floor(1)) == pytest.approx(float(encoding.potential(around).min()), rel=1e-5)


@given(st.sampled_from([2, 5, 16, 64]), st.integers(1, 3), st.booleans())
def test_channels_multiply_to_minus_the_potential(head_dim, space_dim, asymmetric):
    generator = torch.Generator().manual_seed(space_dim)
    queries, keys = 300 * torch.randn(2, 7, space_dim, generator=generator, dtype=torch.float64)
    lengths = 200 + 50 * torch.arange(space_dim, dtype=torch.float64)
    encoding = ff.LAAPE(decay_length_plus=lengths, decay_length_minus=2 * lengths) if asymmetric else ff.LASPE(lengths)
    product = encoding.query_channels(queries, head_dim) @ encoding.key_channels(keys).T / math.sqrt(head_dim)
    channels = 2 * space_dim if asymmetric else 3 * space_dim
    assert encoding.key_channels(keys).shape == (7, channels)
    assert torch.allclose(product, -encoding.potential(queries[:, None] - keys[None]))


@pytest.mark.parametrize("encoding", [ff.LAAPE(250.0), ff.LASPE(250.0), ff.ALiBi(1.0), ff.Window(250.0)])
def test_the_penalty_stays_finite_and_ordered_however_far_the_key(encoding):
    delta = torch.logspace(0, 9, 60)[:, None]
    penalty = encoding.penalty(delta)
    outside = penalty[delta[:, 0] > 260]
    assert torch.isfinite(penalty).all()
    assert (outside.diff() > 0).all()


def test_half_widths_are_the_analytic_ones():
    assert half_width(ff.LASPE(250.0)) == pytest.approx(
        (-250 * math.sqrt(2 * math.log(2)), 250 * math.sqrt(2 * math.log(2)))
    )
    assert half_width(ff.LAAPE(250.0))[1] == pytest.approx(250 * math.acosh(1 + math.log(2)))
    left, right = half_width(ff.LAAPE(decay_length_plus=100.0, decay_length_minus=300.0))
    assert right > -left > 0


def test_kernel_shapes_are_drawn(tmp_path):
    assert draw_kernel_shapes(tmp_path / "kernels.png").stat().st_size > 10_000


def test_frequencies_are_the_papers():
    assert torch.allclose(axial_frequencies(64, 2), 10_000.0 ** (-torch.arange(16).double() * 4 / 64))


@given(st.sampled_from([6, 16, 64]), st.integers(1, 3))
def test_fitted_wavelengths_span_the_asked_range(head_dim, space_dim):
    wavelengths = 2 * math.pi / axial_frequencies(head_dim, space_dim, max_wavelength=2000.0, min_wavelength=16.0)
    assert float(wavelengths[0]) == pytest.approx(16.0)
    if len(wavelengths) > 1:
        assert float(wavelengths[-1]) == pytest.approx(2000.0)


def test_learned_lengths_start_as_given_and_never_pass_the_maximum():
    encoding = ff.LAAPE(100.0, learned=True, max_decay_length=250.0)
    zero = torch.zeros(1)
    assert encoding.decay_length_plus(zero).item() == pytest.approx(100.0, rel=1e-4)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.fill_(1e4)
    assert encoding.decay_length_plus(zero).item() <= 250.0


def test_flashbias_starts_as_laspe():
    q = torch.randn(1, 2, 5, 8)
    assert torch.allclose(ff.FlashBias(100.0, heads=2, head_dim=8).query_weight(q), torch.ones(1, 2, 5))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ff.LASPE(0.0), "decay_length must be positive and finite, got 0.0"),
        (lambda: ff.LASPE([100.0, math.inf]), "decay_length must be positive and finite"),
        (lambda: ff.LASPE([[[1.0]]]), "one per head and axis"),
        (lambda: ff.LAAPE(), "either decay_length, or both"),
        (lambda: ff.LAAPE(1.0, decay_length_plus=1.0, decay_length_minus=1.0), "either decay_length, or both"),
        (lambda: ff.LAAPE(decay_length_plus=1.0), "either decay_length, or both"),
        (lambda: ff.LASPE(1.0, basis=[[1.0, 0.0], [1.0, 1.0]]), "basis must be orthonormal"),
        (lambda: ff.LASPE(1.0, basis=[[1.0, 0.0]]), r"got shape \(1, 2\)"),
        (lambda: ff.LASPE([1.0, 2.0, 3.0], basis=torch.eye(2)), "agree in heads and axes"),
        (lambda: ff.LASPE(1.0, learned=True), "needs max_decay_length"),
        (lambda: ff.LASPE(2.0, learned=True, max_decay_length=1.0), "must not exceed max_decay_length"),
        (lambda: ff.ALiBi(-1.0), "slope must be positive"),
        (lambda: ff.Window(math.nan), "radius must be positive"),
        (lambda: ff.RoPE(max_wavelength=0.5), "max_wavelength must be"),
        (lambda: ff.RoPE(min_wavelength=1e6), "min_wavelength must lie between"),
        (lambda: ff.LASPE(1.0, rotary="yes"), "rotary must be a RoPE or None"),
    ],
)
def test_bad_parameters_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_the_quarter_rule_in_a_homogeneous_domain():
    points = torch.rand(2000, 2, dtype=torch.float64) * torch.tensor([1000.0, 400.0])
    proposed = ff.propose_decay_lengths(points)
    assert torch.allclose(proposed.plus, torch.tensor([250.0, 100.0], dtype=torch.float64), rtol=0.01)
    assert torch.equal(proposed.plus, proposed.minus)
    around = ff.propose_decay_lengths(points, period=(1000.0, None))  # a key is seen at its nearest image
    assert around.symmetric.tolist() == [125.0, proposed.symmetric[1]]


def test_keys_upwind_in_a_larger_domain_ask_for_a_longer_reach_downstream():
    domain = torch.tensor([[-150.0, -120.0], [320.0, 120.0]])
    buildings = torch.tensor([[-50.0, -50.0], [50.0, 50.0]])
    proposed = ff.propose_decay_lengths(domain, buildings)
    assert proposed.minus.tolist() == [(320 + 50) / 4, (120 + 50) / 4]
    assert proposed.plus.tolist() == [(150 + 50) / 4, (120 + 50) / 4]
    assert proposed.symmetric.tolist() == [(370 + 200) / 8, 170 / 4]
    with pytest.raises(ValueError, match="must overlap along every axis"):
        ff.propose_decay_lengths(domain, buildings + 1000)
