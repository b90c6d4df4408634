import json
import warnings

import numpy as np
import pytest
import torch

import farfield as ff
from farfield.data.domain import NORMALISED_WIDTH
from farfield.data.generated import open_split
from farfield.data.samples import step_pairs
from farfield.problems import problem_named
from farfield.problems.generation import SplitConfig
from farfield.runs.run import shipped_models

STEPPING = [name for name in shipped_models() if not name.startswith("urban-wind")]  # the wind is steady


@pytest.fixture
def at_hand(reproduced):
    """A trained predictor, a state of the doubled domain in physical units, and its positions."""
    plan, out, _ = reproduced
    split = open_split(plan.data, "s2")
    state = split.grids(0, slice(2, 3))[0].astype(np.float64)
    fields = {name: state[i].ravel() for i, name in enumerate(split.spec.fields)}
    return ff.load(out / "laape-seed0", device="cpu"), fields, split.domain.points()


def test_a_step_adds_the_networks_change_in_physical_units(at_hand, reproduced):
    """The features, positions and targets of the training data, and nothing else, lie between file and network."""
    predictor, fields, points = at_hand
    plan, *_ = reproduced
    pairs = step_pairs(plan.data, "s2")
    sample = pairs[2]  # the first simulation's state 2
    with torch.no_grad():
        change = pairs.standardise["changes"].inverse(predictor.model(sample.features[None], sample.positions[None])[0])
    stepped = predictor.step(fields, points)
    for index, name in enumerate(predictor.fields):
        expected = fields[name] + change[:, index].double().numpy()
        np.testing.assert_allclose(stepped[name], expected, atol=2e-6)


def test_a_batch_gives_what_its_states_give_alone(at_hand):
    predictor, fields, points = at_hand
    several = {name: np.stack([values, values[::-1], values * 1.01]) for name, values in fields.items()}
    together = predictor.step(several, points)
    for i in range(3):
        alone = predictor.step({name: values[i] for name, values in several.items()}, points)
        for name, values in alone.items():
            np.testing.assert_allclose(together[name][i], values, atol=1e-6)


def test_a_rollout_is_its_steps(at_hand):
    predictor, fields, points = at_hand
    states = predictor.rollout(fields, points, 2)
    once = predictor.step(fields, points)
    twice = predictor.step(once, points)
    for name, values in states.items():
        assert values.shape == (3, len(points))
        for state, expected in zip(values, (fields[name], once[name], twice[name]), strict=True):
            np.testing.assert_array_equal(state, expected)


def test_a_common_shift_of_the_positions_changes_nothing(at_hand):
    predictor, fields, points = at_hand
    for name, values in predictor.step(fields, points + 1e6).items():
        np.testing.assert_allclose(values, predictor.step(fields, points)[name], atol=1e-5)


def test_boundary_flags_come_from_the_extremes_unless_given(at_hand):
    predictor, fields, points = at_hand
    flags = ((points == points.min(0)) | (points == points.max(0))).astype(float)
    by_itself, given = (predictor.step(fields, points, boundary=b) for b in (None, flags))
    none = predictor.step(fields, points, boundary=np.zeros_like(points))
    for name in predictor.fields:
        np.testing.assert_array_equal(by_itself[name], given[name])
        assert not np.array_equal(by_itself[name], none[name])


def test_precision_is_the_inputs(at_hand):
    predictor, fields, points = at_hand
    for dtype in (np.float32, np.float64):
        stepped = predictor.step({name: values.astype(dtype) for name, values in fields.items()}, points)
        assert {values.dtype for values in stepped.values()} == {np.dtype(dtype)}


def test_bad_input_is_named(at_hand):
    predictor, fields, points = at_hand
    one, other = predictor.fields
    half = {name: values[: len(points) // 2] for name, values in fields.items()}
    for message, wrong in (
        (f"expected the fields {one}, {other}, got {one}", {one: fields[one]}),
        ("expected the fields", {**fields, "pressure": fields[one]}),
        ("must have the shape", half),
        ("must have the shape", {**fields, one: fields[one][None]}),
        ("holds 1 values that are NaN", {**fields, one: np.where(np.arange(len(points)) == 3, np.nan, fields[one])}),
        ("must hold real numbers", {**fields, one: fields[one].astype(complex)}),
    ):
        with pytest.raises(ValueError, match=message):
            predictor.step(wrong, points)
    with pytest.raises(ValueError, match=r"positions must have the shape \(points, "):
        predictor.step(fields, np.concatenate([points, points], axis=1))
    with pytest.raises(ValueError, match="positions must be finite"):
        predictor.step(fields, points * np.inf)
    with pytest.raises(ValueError, match=r"boundary must have the shape \(\d+, \d\), one column for each axis"):
        predictor.step(fields, points, boundary=np.zeros(3))
    with pytest.raises(ValueError, match="at least 0"):
        predictor.rollout(fields, points, -1)


def test_points_of_another_spacing_are_warned_of(at_hand):
    """The likeliest mistake: another unit of length."""
    predictor, fields, points = at_hand
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        predictor.step(fields, points)
    if predictor.model.tokens is not None:  # patches cannot be cut from another grid
        with pytest.raises(ValueError, match="fill a regular grid: they span 23001 x 15001 cells"):
            predictor.step(fields, 1000 * points)
        with pytest.raises(ValueError, match=r"form a regular grid with the spacing .* that the model was trained on"):
            predictor.step(fields, 1.3 * points)
        return
    with pytest.warns(UserWarning, match="apart, those that the model was trained on .*unit of length"):
        predictor.step(fields, 1000 * points)


def test_fields_of_a_grids_shape_need_no_positions(at_hand):
    predictor, fields, points = at_hand
    cells = tuple(len(np.unique(axis)) for axis in points.T)
    shaped = {name: values.reshape(cells) for name, values in fields.items()}
    expected = predictor.rollout(fields, points, 2)
    found = predictor.rollout(shaped, steps=2)
    several = predictor.step({name: np.stack([values, values]) for name, values in shaped.items()})
    for name, values in expected.items():
        assert found[name].shape == (3, *cells)
        np.testing.assert_allclose(found[name].reshape(3, -1), values, atol=1e-6)
        assert several[name].shape == (2, *cells)
    with pytest.raises(ValueError, match=r"without positions, field \w must have the shape of a grid"):
        predictor.step({name: values[None, None] for name, values in shaped.items()})


def test_points_may_come_in_any_order(at_hand):
    predictor, fields, points = at_hand
    order = np.random.default_rng(0).permutation(len(points))
    expected = predictor.step(fields, points)
    for name, values in predictor.step({n: v[order] for n, v in fields.items()}, points[order]).items():
        np.testing.assert_allclose(values, expected[name][order], atol=1e-5)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is CUDA here")
def test_a_device_that_is_not_there_is_named(reproduced):
    with pytest.raises(ValueError, match="sees no CUDA here: take cpu"):
        ff.load(reproduced[1] / "laape-seed0", device="cuda")


def test_models_that_are_none_are_named(run_copy, tmp_path):
    with pytest.raises(ValueError, match=r"no model 'swe-nothing': expected a run's folder, .* or a shipped model \("):
        ff.load("swe-nothing")
    with pytest.raises(ValueError, match=r"is not a run: it has no config.yaml"):
        ff.load(tmp_path)
    config = (run_copy / "config.yaml").read_text()
    (run_copy / "config.yaml").write_text(config.replace("width: 24", "width: 48"))
    with pytest.raises(ValueError, match=r"holds the weights of another model: \S+ should be \(48,"):
        ff.load(run_copy)
    (run_copy / "config.yaml").write_text(config.replace("width: 24", "widht: 24"))
    with pytest.raises(ValueError, match="did you mean 'width'"):
        ff.load(run_copy)
    (run_copy / "config.yaml").write_text(config)
    weights = run_copy / "best.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    with pytest.raises(ValueError, match="truncated or damaged"):
        ff.load(run_copy)
    weights.unlink()
    (run_copy / "last.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="no weights at"):
        ff.load(run_copy)
    (run_copy / "dataset.json").write_text(json.dumps({"spec": {}}))
    with pytest.raises(
        ValueError, match=r"(?s)does not describe a trained model: ValidationError: .*\bfields\n  Field required"
    ):
        ff.load(run_copy)
    (run_copy / "dataset.json").write_text('{"spec": ')
    with pytest.raises(ValueError, match="is damaged"):
        ff.load(run_copy)


@pytest.mark.filterwarnings("ignore:the points lie")  # few points, for speed
@pytest.mark.parametrize("name", STEPPING)
def test_shipped_models_step_on_a_domain_larger_than_they_were_trained_on(name):
    predictor = ff.load(name, device="cpu")
    longer = 2.5 * NORMALISED_WIDTH / max(predictor.position_scale)
    if predictor.model.tokens is not None:  # patches: the grid that it was trained on
        cells = (round(longer / predictor.spacing[0]), *[24] * (len(predictor.axes) - 1))
        predicted = predictor.step({field: np.ones(cells) for field in predictor.fields})
    else:
        points = np.stack([a.ravel() for a in np.meshgrid(*[np.linspace(0, longer, 40)] * len(predictor.axes))], -1)
        predicted = predictor.step({field: np.ones(len(points)) for field in predictor.fields}, points)
    assert all(np.isfinite(values).all() for values in predicted.values())


def real_state(problem):
    """The state half-way through a simulation, as the solver leaves it, on the training domain or three times it."""
    generation = problem_named(problem).generation
    config = generation.configure("cpu")
    split = SplitConfig(simulations=1, scale=(3.0,) if len(config.cells) == 1 else (1.0, 1.0))
    config = config.replace(splits={"train": split})
    state = generation.solve_split(config, "train", 0, 1)[0, config.states // 2]
    return {name: values.ravel() for name, values in zip(generation.fields, state, strict=True)}, config.domain(
        split
    ).points()


@torch.no_grad()
@pytest.mark.parametrize("name", STEPPING)
def test_tiled_attention_keeps_its_tolerance_with_trained_weights(name):
    """Trained queries and keys are sharper than random ones; what each block attends to is compared, block by block."""
    predictor, tolerance = ff.load(name, device="cpu"), 1e-4
    model, given = predictor.model, []
    model.blocks[0].register_forward_pre_hook(lambda _, inputs: given.extend(inputs[:2]))
    predictor.step(*real_state(name.rpartition("-")[0]))
    x, positions = given
    for block in model.blocks:
        attention, normed = block.attention, block.norm_attention(x)
        q, (k, v) = attention.queries(normed), attention.keys_values(normed)
        some = torch.arange(0, len(positions), max(1, len(positions) // 384))
        tiled = ff.local_attention(q, k, v, positions, encoding=attention.encoding, backend="tiled")[:, :, some]
        formula = ff.local_attention(
            q[:, :, some], k, v, positions[some], positions, encoding=attention.encoding, backend="reference"
        )
        assert (tiled - formula).norm() <= tolerance * formula.norm()
        x = block(x, positions)
