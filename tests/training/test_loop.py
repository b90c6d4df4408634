"""Laws of the loop: repeatable, resumable bit for bit, the same in any number of parts and processes."""

import csv
import io
import json
import math
import multiprocessing
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from small import assert_same_run, losses, training_run

from farfield.problems import problem_named, problem_of
from farfield.runs.config import TrainingConfig
from farfield.runs.run import Run
from farfield.runs.weights import load_state, load_weights, save_weights
from farfield.training.loop import Diverged, Interrupted, fit
from farfield.training.optimisers import learning_rate

RECORDED = Path(__file__).parent / "recorded_losses.csv"

# all that could spoil an exact continuation at once: two optimisers, averaged weights, random crops, partial batches
AWKWARD = {
    "training.optimiser": "muon",
    "training.average": 0.9,
    "training.accumulation": 2,
    "sampling.crop": [12],
    "sampling.rim": 2,
}


def train(config, folder, **options) -> Run:
    run = Run(folder)
    fit(problem_named(config.problem), config, run, console=Console(quiet=True), **options)
    return run


def config_of(run: Run):
    return problem_of(run).config(run)


def loss_values(run: Run, file: str = "losses.csv") -> list[float]:
    return [loss for _, loss in losses(run, file)]


def stop_after_the_first_step(run: Run) -> None:
    """Send this process the stop signal as soon as the run, begun next, has written its first loss."""

    def wait_and_stop():
        while not (run.losses_path.exists() and len(run.losses_path.read_bytes().splitlines()) > 1):
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait_and_stop).start()


def test_a_run_killed_at_random_and_resumed_ends_with_the_same_weights(tiny, tmp_path):
    config = tiny.changed({**AWKWARD, "training.steps": 60})
    forkserver = multiprocessing.get_context("forkserver")
    forkserver.set_forkserver_preload(["farfield.training.loop", "torch.utils.tensorboard"])
    problem = problem_named(config.problem)
    whole = Run(tmp_path / "whole")  # in a process like the others: this one may round otherwise
    child = forkserver.Process(target=fit, args=(problem, config, whole))
    child.start()
    child.join()
    assert child.exitcode == 0
    chance = random.Random(0)
    run, kills = Run(tmp_path / "killed"), 0
    while True:
        begun = run.state_path.exists()
        child = forkserver.Process(target=fit, args=(problem, config, run), kwargs={"resume": begun})
        child.start()
        rows = len(losses(run)) if begun else 0
        enough = rows + chance.randint(5, 20)  # more than a checkpoint's interval, so that each life gets further
        while child.is_alive() and (
            not run.losses_path.exists() or len(run.losses_path.read_bytes().splitlines()) < enough
        ):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.02))  # in the middle of anything: a step, a row, a checkpoint
        child.kill()
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
        kills += 1
    assert kills >= 2
    assert_same_run(run, whole)


def test_a_stop_signal_saves_and_the_run_continues_exactly(tiny, tmp_path):
    whole = train(tiny, tmp_path / "whole")
    run = Run(tmp_path / "stopped")
    stop_after_the_first_step(run)
    with pytest.raises(Interrupted, match=r"stopped after step \d+ of 30; continue with --resume"):
        train(tiny, run.folder)
    assert 1 <= len(losses(run)) < 30
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    train(tiny, run.folder, resume=True)
    assert_same_run(run, whole)
    train(tiny, run.folder, resume=True)  # a finished run stays as it is
    assert_same_run(run, whole)


def test_a_run_is_repeated_by_its_own_configuration(tiny, tmp_path):
    first = train(tiny.changed(AWKWARD), tmp_path / "first")
    assert_same_run(train(config_of(first), tmp_path / "second"), first)
    other = train(tiny.changed({**AWKWARD, "seed": 1}), tmp_path / "other")
    assert losses(other) != losses(first)


def test_losses_are_those_on_record(tiny, tmp_path):
    run = train(tiny, tmp_path)
    if os.environ.get("FARFIELD_RECORD"):  # after a change that is meant to change them
        RECORDED.write_text("step,loss\n" + "".join(f"{step},{loss:.6g}\n" for step, loss in losses(run)))
    with RECORDED.open() as rows:
        recorded = [float(row["loss"]) for row in csv.DictReader(rows)]
    assert loss_values(run) == pytest.approx(recorded, rel=2e-3)  # other processors round otherwise


@pytest.mark.parametrize("window", [{}, {"sampling.crop": [12], "sampling.rim": 2}], ids=["domains", "windows"])
def test_parts_of_a_batch_give_the_losses_of_the_whole(tiny, tmp_path, window):
    whole = train(tiny.changed(window), tmp_path / "whole")
    parts = train(tiny.changed({**window, "training.accumulation": 4}), tmp_path / "parts")
    assert loss_values(parts) == pytest.approx(loss_values(whole), rel=1e-5)


def test_processes_give_the_losses_of_one(tiny, tmp_path):
    """Two that share each domain, times two that share the data."""
    one = train(tiny, tmp_path / "one")
    command = ["train", "--config", str(one.config_path), "--out", str(tmp_path / "two"), "--accelerator", "cpu"]
    subprocess.run(
        [sys.executable, "-m", "farfield", *command, "--devices", "4", "--per-domain", "2"],
        check=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    two = Run(tmp_path / "two")
    assert loss_values(two) == pytest.approx(loss_values(one), rel=1e-5)
    assert loss_values(two, "validation.csv") == pytest.approx(loss_values(one, "validation.csv"), rel=1e-5)
    for name, weight in load_file(one.last_path).items():
        torch.testing.assert_close(load_file(two.last_path)[name], weight, rtol=1e-3, atol=1e-4)


def test_the_paper_preset_takes_its_first_20_steps(tmp_path, paper_data):
    config = training_run("swe", "paper", "laape", str(paper_data))
    config = config.changed({"training.steps": 20})
    run = train(config, tmp_path)
    values = loss_values(run)
    assert len(values) == 20
    assert all(math.isfinite(value) for value in values)
    assert sum(values[-5:]) < sum(values[:5])
    assert sum(weight.numel() for weight in load_file(run.last_path).values()) > 2_600_000


@pytest.mark.parametrize("optimiser", ["lion", "adamw", "muon"])
def test_every_optimiser_learns(tiny, tmp_path, optimiser):
    rate = {"lion": 3e-4, "adamw": 3e-3, "muon": 3e-3}[optimiser]
    changes = {"training.optimiser": optimiser, "training.learning_rate": rate, "training.steps": 60}
    values = loss_values(train(tiny.changed(changes), tmp_path))
    assert sum(values[-5:]) < 0.7 * sum(values[:5])


def test_activation_checkpointing_changes_nothing(tiny, tmp_path):
    plain = train(tiny, tmp_path / "plain")
    assert_same_run(train(tiny.changed({"model.checkpointing": True}), tmp_path / "recomputed"), plain)


def test_bfloat16_trains_too(tiny, tmp_path):
    values = loss_values(train(tiny.changed({"training.precision": "bfloat16"}), tmp_path))
    assert sum(values[-5:]) < sum(values[:5])


def test_the_rate_warms_up_and_falls_along_a_cosine():
    config = TrainingConfig(steps=1000)
    rates = [learning_rate(step, 1000, config) for step in range(1000)]
    assert rates[0] == pytest.approx(5e-5 / 50) and max(rates) == rates[49] == rates[50] == 5e-5
    assert rates[-1] == pytest.approx(1e-6)
    assert rates[525] == pytest.approx((5e-5 + 1e-6) / 2, rel=1e-2)


def test_a_nan_loss_stops_at_its_step_and_keeps_the_last_checkpoint(tiny, tmp_path):
    config = tiny.changed({"training.learning_rate": 1e30, "training.warmup": 0.5, "training.checkpoint_every": 1})
    with pytest.raises(Diverged, match=r"the loss is (nan|inf).* at step (\d+): stopped"):
        train(config, tmp_path)
    run = Run(tmp_path)
    assert all(weight.isfinite().all() for weight in load_file(run.last_path).values())
    assert all(map(math.isfinite, loss_values(run)))
    assert torch.load(run.state_path, weights_only=True)["step"] == len(losses(run))


def test_a_validation_that_is_no_number_stops_the_run_and_is_told(tiny, tmp_path):
    class Spoiled:
        """Learns well, and is judged by nothing but NaN."""

        def task(self, config):
            task = problem_named("swe").task(config)
            return replace(task, loss=lambda *args: task.loss(*args) * (1 if torch.is_grad_enabled() else math.nan))

    run = Run(tmp_path)
    with pytest.raises(Diverged, match=r"the validation loss is nan at step 7: stopped, .*last\.safetensors holds"):
        fit(Spoiled(), tiny, run, console=Console(quiet=True))
    assert len(losses(run)) == 7 and run.last_path.exists() and not run.best_path.exists()


def test_a_full_disk_is_named_and_loses_nothing(tiny, tmp_path):
    whole = train(tiny, tmp_path / "whole")
    run = train_until(tiny, tmp_path / "run", steps=10)
    before = run.state_path.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (40_000, hard)
    )  # no file may grow beyond this: writes fail as on a full disk
    try:
        with pytest.raises(OSError, match=r"could not write .*(safetensors|state\.pt).*make room and --resume"):
            train(tiny, run.folder, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert run.state_path.read_bytes() == before
    train(tiny, run.folder, resume=True)
    assert_same_run(run, whole)


def test_a_disk_that_fills_between_checkpoints_is_named_too(tiny, tmp_path):
    config = tiny.changed({"training.checkpoint_every": 100})
    whole = train(config, tmp_path / "whole")
    run = train_until(config, tmp_path / "run", steps=20)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (run.losses_path.stat().st_size + 100, hard))
    try:
        with pytest.raises(OSError, match=r"could not write .*losses\.csv.*make room and --resume"):
            train(config, run.folder, resume=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    train(config, run.folder, resume=True)
    assert_same_run(run, whole)


def train_until(config, folder, steps: int) -> Run:
    """A run that was stopped after some steps: trained to the end, with its state put back."""
    run = Run(folder)
    stopper = threading.Thread(target=_stop_at, args=(run, steps))
    stopper.start()
    with pytest.raises(Interrupted):
        train(config, folder)
    stopper.join()
    return run


def _stop_at(run: Run, rows: int) -> None:
    while not (run.losses_path.exists() and len(run.losses_path.read_bytes().splitlines()) > rows):
        time.sleep(0.0005)
    os.kill(os.getpid(), signal.SIGINT)


def test_damaged_and_foreign_checkpoints_are_refused(tiny, tmp_path):
    run = train(tiny.changed({"training.steps": 4}), tmp_path / "run")
    content = run.state_path.read_bytes()
    for length in (0, 1, 100, *range(1000, len(content), len(content) // 12), len(content) - 1):
        run.state_path.write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"state\.pt is truncated or damaged"):
            load_state(run.state_path)
    with pytest.raises(ValueError, match=r"state\.pt is truncated or damaged"):
        train(config_of(run), run.folder, resume=True)
    wider = train(tiny.changed({"training.steps": 4, "model.width": 36}), tmp_path / "wider")
    run.state_path.write_bytes(wider.state_path.read_bytes())
    with pytest.raises(ValueError, match=r"another model: embed.weight should be \(24, 3\), is \(36, 3\).* more"):
        train(config_of(run), run.folder, resume=True)
    model = torch.nn.Linear(2, 2)
    save_weights(tmp_path / "w.safetensors", model)
    load_weights(tmp_path / "w.safetensors", model)
    (tmp_path / "w.safetensors").write_bytes((tmp_path / "w.safetensors").read_bytes()[:-5])
    with pytest.raises(ValueError, match="truncated or damaged"):
        load_weights(tmp_path / "w.safetensors", model)
    with pytest.raises(FileNotFoundError, match="no weights at"):
        load_weights(tmp_path / "none.safetensors", model)


def test_missing_and_mismatching_data_is_refused(tiny, tmp_path):
    with pytest.raises(FileNotFoundError, match="farfield generate"):
        train(tiny.changed({"dataset": str(tmp_path / "nowhere")}), tmp_path / "run")
    with pytest.raises(ValueError, match="a dataset of swe, the run is for gray-scott"):
        train(tiny.changed({"problem": "gray-scott"}), tmp_path / "run")
    with pytest.raises(ValueError, match="a dataset of swe, the run is for gray-scott"):  # not of its windows
        train(training_run("gray-scott", "cpu", "laape", tiny.dataset), tmp_path / "run")
    with pytest.raises(ValueError, match="has 40 training items, fewer than one batch of 64"):
        train(tiny.changed({"training.batch_size": 64}), tmp_path / "run")
    run = train(tiny.changed({"training.steps": 4}), tmp_path / "run")
    described = run.dataset()
    described["states"]["mean"][0] += 1
    run.dataset_path.write_text(json.dumps(described))
    with pytest.raises(ValueError, match="was trained on other data: its states is"):
        train(config_of(run), run.folder, resume=True)


def test_a_run_is_not_overwritten(tiny, tmp_path):
    train(tiny.changed({"training.steps": 2}), tmp_path)
    with pytest.raises(ValueError, match="already holds a run: continue it with --resume"):
        train(tiny, tmp_path)
    Run(tmp_path).state_path.unlink()  # as in kept results and shipped models
    with pytest.raises(ValueError, match=r"already holds trained weights \(best.safetensors\): choose another --out"):
        train(tiny, tmp_path)
    with pytest.raises(ValueError, match="is not a run"):
        config_of(Run(tmp_path / "none"))


def test_what_a_killed_process_left_half_written_goes_when_the_run_is_resumed(tiny, tmp_path):
    run = train(tiny.changed({"training.steps": 2}), tmp_path)
    (tmp_path / ".state.pt.0123abcd.partial").write_bytes(b"half")
    said = io.StringIO()
    fit(problem_of(run), config_of(run), run, resume=True, console=Console(file=said, width=200))
    assert not list(tmp_path.glob(".*"))
    assert "is trained to its last step, 2: nothing to continue" in said.getvalue()


def test_a_run_folder_describes_itself(tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/farfield", "train", "swe", "--set", "model.width=24 "])
    run = train(tiny, tmp_path)
    assert config_of(run) == tiny
    assert {path.name for path in run.folder.iterdir()} == {
        "config.yaml",
        "provenance.json",
        "dataset.json",
        "best.safetensors",
        "last.safetensors",
        "state.pt",
        "losses.csv",
        "validation.csv",
        "tensorboard",
    }
    provenance = json.loads(run.provenance_path.read_text())
    assert provenance["commands"] == ["farfield train swe --set 'model.width=24 '"]
    assert (provenance["seed"], provenance["processes"]) == (0, 1)
    assert provenance["precision"] == "float32"
    assert set(provenance["versions"]) >= {"farfield", "torch", "numpy", "python"}
    assert list(run.tensorboard_path.iterdir())
    assert [step for step, _ in losses(run, "validation.csv")] == [7, 14, 21, 28, 30]
