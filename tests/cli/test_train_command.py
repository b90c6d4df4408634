"""``farfield train`` as a user meets it."""

import pytest
from typer.testing import CliRunner

from farfield.cli import app
from farfield.problems import problem_of
from farfield.runs.run import Run


def farfield(*arguments: str) -> str:
    result = CliRunner().invoke(app, list(arguments), catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_a_run_is_begun_repeated_and_continued(tiny, tmp_path):
    out = tmp_path / "run"
    small = ["--set", "model.width=24", "--set", "model.depth=1", "--set", "training.batch_size=4"]
    data = ["--data", tiny.dataset, "--encoding", "laspe", "--seed", "5"]
    shown = farfield("train", "swe", "--preset", "quick", *data, "--out", str(out), *small, "--set", "training.steps=3")
    assert "step 3/3" in shown and "validation loss" in shown
    config = problem_of(Run(out)).config(Run(out))
    assert (config.encoding.name, config.seed, config.model.width, config.training.steps) == ("laspe", 5, 24, 3)
    farfield("train", "--config", str(out / "config.yaml"), "--out", str(tmp_path / "again"))
    assert (tmp_path / "again/last.safetensors").read_bytes() == (out / "last.safetensors").read_bytes()
    farfield("train", "--resume", str(out))


def test_what_cannot_be_meant_is_refused(tmp_path):
    with pytest.raises(ValueError, match="give one of: a problem"):
        farfield("train")
    with pytest.raises(ValueError, match="give one of: a problem"):
        farfield("train", "swe", "--resume", str(tmp_path))
    with pytest.raises(ValueError, match="--resume continues a run as it was begun"):
        farfield("train", "--resume", str(tmp_path), "--set", "seed=1")
    with pytest.raises(ValueError, match=r"config\.yaml: --encoding, --seed cannot be given with it"):
        farfield("train", "--resume", str(tmp_path), "--encoding", "rope", "--seed", "0")
    with pytest.raises(ValueError, match=r"--set model\.width=\[3: the value is not a number"):
        farfield("train", "swe", "--set", "model.width=[3")
    with pytest.raises(ValueError, match="is not a run"):
        farfield("train", "--resume", str(tmp_path))
    with pytest.raises(ValueError, match=r"model: unknown key 'with': did you mean 'width'\?"):
        farfield("train", "swe", "--set", "model.with=3")
