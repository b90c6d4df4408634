"""The published effect is visible, and local coordinates are free of it."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from farfield.attention import LAAPE, LASPE
from farfield.models.config import EncodingConfig, ModelConfig
from farfield.prediction.stepping import Predictor
from farfield.studies.precision import experiments, models
from farfield.studies.precision import rows as stability_rows
from farfield.studies.precision.arithmetic import FORMATS
from farfield.studies.precision.experiments import Limits, Patch, WideDomain
from farfield.studies.precision.models import Trial
from farfield.studies.precision.page import Numbers, choice_table, statements, write_stability_report
from farfield.studies.precision.rows import StabilityRow

KEPT = Path(__file__).parents[2] / "results" / "stability"
ENCODINGS = {"LASPE": LASPE, "LAAPE": LAAPE}


@pytest.fixture(scope="module", params=ENCODINGS)
def patch(request):
    return Patch.draw(ENCODINGS[request.param](experiments.DECAY_LENGTH), points=10)


def test_in_float64_at_the_origin_the_emulation_is_the_formula(patch):
    assert all(error < 1e-13 for error in patch.errors("published", "float64", 0).values())


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_as_published_laspe_breaks_with_distance_and_laape_at_its_limit(patch, precision):
    limit = Limits.of(precision).laape_width() / 2
    near, inside, beyond = (patch.errors("published", precision, d) for d in (0, limit - 4, 1.2 * limit))
    for quantity, error in near.items():
        if isinstance(patch.encoding, LASPE):
            assert patch.errors("published", precision, 20)[quantity] > 10 * error
        else:
            assert inside[quantity] < 1.5 * error
            assert beyond[quantity] == math.inf


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "float32"])
def test_in_local_coordinates_the_error_is_the_same_everywhere(patch, precision):
    near = patch.errors("local", precision, 0)
    for distance in (20, 1000, 1_000_000):
        for quantity, error in patch.errors("local", precision, distance).items():
            assert error <= 1.05 * near[quantity]


@pytest.mark.parametrize("precision", FORMATS)
def test_the_first_width_that_is_not_finite_is_the_one_computed(precision):
    domain = WideDomain.draw(LAAPE(experiments.DECAY_LENGTH), points=16)
    width = Limits.of(precision).laape_width()
    assert math.isfinite(domain.error("published", precision, 0.999 * width, 0.0))
    assert domain.error("published", precision, 1.001 * width, 0.0) == math.inf


@pytest.mark.parametrize("name", ENCODINGS)
def test_local_coordinates_are_right_a_million_decay_lengths_wide(name):
    domain = WideDomain.draw(ENCODINGS[name](experiments.DECAY_LENGTH), points=16)
    small, large = (domain.error("local", "bfloat16", width, 0.0) for width in (10, 1_000_000))
    assert large < 1.05 * small


def test_the_search_finds_where_a_condition_ends():
    assert experiments.widest(lambda width: width < 42.0, 1.0, 1e300) == pytest.approx(42.0)


def tiny_predictor(encoding="laspe", decay_length=100.0, tokens=None):
    config = EncodingConfig(name=encoding, decay_length=decay_length)
    torch.manual_seed(0)
    spacing = (1000 / 32, 1000 / 32)
    model = ModelConfig(width=24, depth=1, heads=2, tokens=tokens).build(config, 4, 2, spacing)
    for parameter in model.parameters():  # patches begin with a projection to zero
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.3)
    spec = {
        "problem": "gray-scott", "fields": ["U", "V"], "field_units": ["1", "1"], "axes": ["x", "y"],
        "training_extent": [32.0, 32.0], "spacing": [1.0, 1.0], "time_step": 50.0,
        "length_unit": "1", "boundary": "wall", "time_unit": "1",
    }  # fmt: skip
    moments = {"mean": [0.0, 0.0], "std": [1.0, 1.0]}
    return Predictor(model, {"spec": spec, "states": moments, "changes": moments}, encoding)


@torch.no_grad()
@pytest.mark.parametrize("tokens", [None, {"patch": 2}])
def test_a_shifted_model_is_wrong_as_published_and_the_same_in_local_coordinates(tokens):
    predictor = tiny_predictor(tokens=tokens)
    before = {name: value.clone() for name, value in predictor.model.state_dict().items()}
    rows, pictures = models.shift_rows(Trial(predictor, 2, 512), shift=25.0)
    error = {(row.way, row.precision, row.distance): row.value for row in rows}
    assert error["published", "bfloat16", 25.0] > 10 * error["published", "bfloat16", 0.0]
    assert error["published", "float32", 25.0] < error["published", "bfloat16", 0.0]
    assert error["local", "bfloat16", 25.0] < 1.05 * error["local", "bfloat16", 0.0]
    assert pictures["shift LASPE exact"].shape == (2, 64, 8)
    assert all(torch.equal(value, before[name]) for name, value in predictor.model.state_dict().items())


@torch.no_grad()
def test_a_domain_beyond_laapes_limit_is_lost_as_published_only():
    trial = Trial(tiny_predictor("laape", 20.0), 4, 1024)  # 200 decay lengths long
    rows, _ = models.map_rows(trial, bands=4)
    found = {(row.way, row.quantity): row.value for row in rows if row.quantity.startswith(("pred", "share"))}
    assert found["published", "prediction error"] == math.inf
    assert found["published", "share of points not finite"] > 0.5
    assert found["local", "prediction error"] < 0.05


def test_other_models_are_refused():
    with pytest.raises(ValueError, match="takes Gray-Scott models with laspe or laape"):
        Trial(tiny_predictor("alibi"), 2, 512)


def test_rows_survive_the_file(tmp_path):
    rows = [StabilityRow("attention", "LASPE", "local", "float16", 10.0, "output error", math.inf)]
    stability_rows.write_stability(tmp_path / "stability.csv", rows)
    assert stability_rows.read_stability(tmp_path / "stability.csv") == rows


def test_the_page_says_what_is_left_out_without_a_model_and_shows_it_with_one(tmp_path):
    rows = stability_rows.read_stability(KEPT / "stability.csv")
    plain = [row for row in rows if row.experiment not in ("map", "shift")]
    (tmp_path / "kernel-shapes.png").write_bytes((KEPT / "report/figures/kernel-shapes.png").read_bytes())
    stability_rows.write_stability(tmp_path / "stability.csv", plain)
    np.savez(tmp_path / "maps.npz")
    page = write_stability_report(tmp_path, tmp_path / "without", "command").read_text(encoding="utf-8")
    assert "no trained Gray-Scott model" in page
    with torch.no_grad():
        trial = Trial(tiny_predictor(), 2, 512)
        mapped, maps = models.map_rows(trial, bands=4)
        shifted, shifts = models.shift_rows(trial, 25.0)
    stability_rows.write_stability(tmp_path / "stability.csv", [*plain, *mapped, *shifted])
    np.savez(tmp_path / "maps.npz", **maps, **shifts)
    page = write_stability_report(tmp_path, tmp_path / "with", "command").read_text(encoding="utf-8")
    assert "no trained Gray-Scott model" not in page
    assert (tmp_path / "with" / "figures" / "stability-map.png").exists()


def test_the_kept_rows_show_what_they_must():
    for text, holds in statements(Numbers(stability_rows.read_stability(KEPT / "stability.csv"))):
        assert holds, text


def test_the_documentation_shows_the_kept_rows():
    table = choice_table(Numbers(stability_rows.read_stability(KEPT / "stability.csv"))).markdown()
    assert table in (KEPT.parents[1] / "docs" / "precision.md").read_text(encoding="utf-8")
