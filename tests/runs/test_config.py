import pytest
from small import training_run

import farfield as ff
from farfield.models.config import EncodingConfig
from farfield.problems import problem_of
from farfield.problems.urban_wind.config import UrbanRun
from farfield.runs.config import SteppingRun, parse_settings
from farfield.runs.run import Run


@pytest.mark.parametrize("problem", ["swe", "gray-scott"])
@pytest.mark.parametrize("encoding", ["rope", "laspe", "laape"])
def test_the_paper_preset_is_the_papers_table(problem, encoding):
    config = training_run(problem, "paper", encoding, "data")
    model, training = config.model, config.training
    # Table "Hyperparameters of the models used for all academic datasets experiments"
    assert model.width == 192
    assert model.depth == 6
    assert model.heads == 3
    assert model.expansion == 4  # one hidden layer
    assert config.encoding.rotary.max_wavelength == 10_000
    assert config.encoding.rotary.min_wavelength is None
    # Appendix "Training setup"
    assert training.optimiser == "lion"
    assert training.warmup == 0.05
    assert training.learning_rate == 5e-5
    assert training.final_learning_rate == 1e-6
    assert training.weight_decay == 0.05
    assert training.gradient_clip == 0.25
    assert training.precision == "auto"  # bfloat16 wherever the hardware computes in it
    assert training.epochs == 100
    assert training.steps is None
    assert training.batch_size == 32
    assert training.accumulation == 1
    assert training.average == 0  # the last weights, no average
    assert config.sampling.crop is None and config.sampling.points is None  # whole domains
    # Section "Academic test cases"
    assert config.encoding.decay_length == (None if encoding == "rope" else 250)
    assert config.encoding.decay_length_plus is config.encoding.decay_length_minus is None
    assert not config.encoding.learned


@pytest.mark.parametrize("encoding", ["rope", "laspe", "laape"])
def test_the_paper_preset_of_urban_wind_is_the_papers_table(encoding):
    config = training_run("urban-wind", "paper", encoding, "data")
    model, points, training = config.model, config.points, config.training
    # Table "AB-SWIFT hyperparameters"
    assert (model.width, model.heads, model.expansion) == (192, 3, 4)
    assert (model.obstacle_radius, model.terrain_radius) == (1, 5)
    assert (model.processor_depth, model.decoder_depth) == (3, 4)
    assert (points.obstacles, points.terrain) == (4096, 4096)
    assert (points.obstacle_supernodes, points.terrain_supernodes, points.anchors) == (1024, 1024, 8192)
    assert model.fields == {"velocity": 3, "pressure": 1, "k": 1, "epsilon": 1}
    assert (config.encoding.rotary.max_wavelength, config.encoding.rotary.min_wavelength) == (10_000, None)
    assert config.encoding.decay_factor == 1
    # Appendix "Training setup"
    academic = training_run("swe", "paper", encoding, "data").training
    assert training == academic.model_copy(update={"epochs": 500, "batch_size": 1})


@pytest.mark.parametrize("preset", ["quick", "cpu", "paper"])
@pytest.mark.parametrize("encoding", ["rope", "laspe", "laape"])
def test_urban_presets_go_to_yaml_and_back(tmp_path, preset, encoding):
    config = training_run("urban-wind", preset, encoding, "data", seed=3)
    config.save(tmp_path / "config.yaml")
    run = Run(tmp_path)
    again = problem_of(run).config(run)
    assert isinstance(again, UrbanRun) and again == config
    rope = training_run("urban-wind", preset, "rope", "data", seed=3)
    assert (rope.model, rope.points, rope.training) == (config.model, config.points, config.training)  # the same budget


@pytest.mark.parametrize("problem", ["swe", "gray-scott"])
@pytest.mark.parametrize("preset", ["quick", "cpu", "paper"])
@pytest.mark.parametrize("encoding", ["rope", "laspe", "laape", "flashbias", "alibi", "window"])
def test_every_preset_goes_to_yaml_and_back(tmp_path, problem, preset, encoding):
    config = training_run(problem, preset, encoding, "data", seed=3)
    config.save(tmp_path / "config.yaml")
    run = Run(tmp_path)
    assert problem_of(run).config(run) == config


@pytest.mark.parametrize("preset", ["quick", "cpu"])
@pytest.mark.parametrize("problem", ["swe", "gray-scott"])
def test_all_encodings_of_a_preset_have_the_same_budget(problem, preset):
    runs = [training_run(problem, preset, encoding, "data") for encoding in ("rope", "laspe", "laape")]
    assert len({run.model for run in runs}) == len({run.training for run in runs}) == 1
    assert len({run.encoding.rotary for run in runs}) == 1


def test_an_unknown_key_is_refused_with_the_nearest_name():
    config = training_run("swe", "paper", "laape", "data")
    with pytest.raises(ValueError, match=r"model: unknown key 'widht': did you mean 'width'\?"):
        config.changed({"model.widht": 96})
    with pytest.raises(ValueError, match=r"unknown key 'trainning': did you mean 'training'\?"):
        config.changed({"trainning.steps": 96})
    with pytest.raises(ValueError, match="unknown key 'zzz': valid keys: max_wavelength, min_wavelength"):
        config.changed({"encoding.rotary.zzz": 1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.width": 3.5}, r"model\.width: .*integer.*got 3\.5"),
        ({"model.width": 100}, "multiple of heads, got 100 and 3"),
        ({"model.width.x": 1}, "width is not a group of settings"),
        ({"encoding.name": "lape"}, "laspe.*got 'lape'"),
        ({"encoding.decay_length": -1}, r"positive and finite, got -1"),
        ({"encoding.decay_length": [[1, 2], ["a", 3]]}, r"encoding\.decay_length\.1\.0: .*got 'a'"),
        ({"encoding.decay_length_plus": 100.0}, "both decay_length_plus and decay_length_minus"),
        ({"encoding.name": "rope"}, "rope has no decay length"),
        ({"encoding.name": "laspe", "encoding.decay_length_plus": 3.0}, "laspe is symmetric"),
        ({"encoding.rotary.min_wavelength": 1e5}, "min_wavelength must lie between"),
        ({"training.steps": None, "training.epochs": None}, "either epochs or steps"),
        ({"training.accumulation": 5}, "multiple of accumulation, got 32 in 5 parts"),
        ({"training.learning_rate": -1.0}, "greater than 0, got -1"),
        ({"model.backend": "flash"}, "'auto', 'reference', 'dense', 'tiled' or 'flex', got 'flash'"),
        ({"encoding.decay_length": [[1.0], [2.0]]}, "given for 2 heads, model.heads is 3"),
    ],
)
def test_a_wrong_value_says_what_was_expected_and_what_was_given(changes, message):
    with pytest.raises(ValueError, match=message):
        training_run("swe", "paper", "laape", "data").changed(changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"points.anchor": 3}, r"points: unknown key 'anchor': did you mean 'anchors'\?"),
        ({"sampling.crop": [3]}, "unknown key 'sampling'"),
        ({"points.obstacle_supernodes": 9999}, "chosen among 4096 points, got 9999"),
        ({"encoding.name": "alibi"}, "'rope', 'laspe' or 'laape', got 'alibi'"),
        ({"encoding.name": "rope", "encoding.decay_factor": 2}, "rope has no decay length, got decay_factor 2"),
        ({"model.width": 100}, "multiple of heads, got 100 and 3"),
        ({"training.loss": "relative"}, "trained with the loss mse, got relative"),
        ({"problem": "urban"}, "problem: Input should be 'urban-wind', got 'urban'"),
    ],
)
def test_urban_wind_refuses_what_it_cannot_be(changes, message):
    with pytest.raises(ValueError, match=message):
        training_run("urban-wind", "paper", "laape", "data").changed(changes)


def test_the_network_is_what_its_settings_say():
    changes = {"model.width": 24, "model.decoder_depth": 2, "encoding.decay_factor": 0.5, "model.fields": {"k": 1}}
    model = training_run("urban-wind", "paper", "laape", "data").changed(changes).build()
    assert len(model.processor) == 6 and len(model.decoder) == 2 and model.fields == {"k": 1}
    assert model.pool_terrain.radius == 5
    downstream = [blocks[0].attention.encoding.decay_length_minus for blocks in (model.geometry, model.decoder)]
    assert [lengths.maximum.tolist() for lengths in downstream] == [[55.5, 125, 250], [112.5, 125, 250]]


def test_settings_are_read_as_yaml():
    assert parse_settings(["a.b=96", "c=1e-3", "d=[[1], [2.5]]", "e=null", "f=muon", "g=true"]) == {
        "a.b": 96,
        "c": 1e-3,
        "d": [[1], [2.5]],
        "e": None,
        "f": "muon",
        "g": True,
    }
    with pytest.raises(ValueError, match="expects name=value"):
        parse_settings(["model.width"])


def test_a_file_that_is_no_configuration_is_refused(tmp_path):
    for text, message in (
        ("a: [", "is damaged"),
        ("just text", "instead of names and values"),
        ("problem: swe", "dataset"),
        ("case: swe", "dataset"),
    ):
        (tmp_path / "config.yaml").write_text(text)
        with pytest.raises(ValueError, match=message):
            SteppingRun.load(tmp_path / "config.yaml")


def test_names_a_user_types_are_checked():
    with pytest.raises(ValueError, match="unknown problem 'sew': expected one of gray-scott, swe, urban"):
        training_run("sew", "cpu", "laape", "data")
    with pytest.raises(ValueError, match="no preset 'fast': expected one of"):
        training_run("swe", "fast", "laape", "data")
    with pytest.raises(ValueError, match="unknown encoding 'rop'"):
        training_run("swe", "cpu", "rop", "data")


def test_encodings_are_what_their_settings_say():
    laape = EncodingConfig(name="laape", decay_length_plus=[[10], [20]], decay_length_minus=30).build(2, 8)
    assert isinstance(laape, ff.LAAPE) and laape.heads() == 2
    rope = EncodingConfig(name="rope", rotary={"min_wavelength": 16, "max_wavelength": 500}).build(2, 8)
    assert isinstance(rope, ff.RoPE) and rope.rotary.min_wavelength == 16
    assert EncodingConfig(name="laspe", decay_length=50, rotary=None).build(2, 8).rotary is None
    assert EncodingConfig(name="alibi", decay_length=50).build(2, 8).slope == 1 / 50
    assert EncodingConfig(name="window", decay_length=50).build(2, 8).radius == 100
    assert isinstance(EncodingConfig(name="flashbias", decay_length=50).build(2, 8), ff.FlashBias)
    learned = EncodingConfig(name="laspe", decay_length=50, learned=True, max_decay_length=250).build(2, 8)
    assert learned.decay_length.learned
