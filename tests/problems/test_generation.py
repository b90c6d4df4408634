"""Datasets: the same bytes however made, nothing half-made or overwritten, the published statistics."""

import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import yaml
from small import generate, solve_split
from small import tiny_dataset as tiny

from farfield.data.card import distance_from_published
from farfield.data.generated import open_split
from farfield.problems import generation, problem_named

# Starts a child per line of input (a case and a folder) that generates there; prints its process id, then how
# it ended. The parent has imported everything and uses no threads, so that children start at once.
SPAWNER = """
import os, sys
sys.path.insert(0, {tests!r})
from small import generate, tiny_dataset as tiny
for line in sys.stdin:
    case, folder = line.split()
    child = os.fork()
    if child == 0:
        generate(tiny(case), folder)
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def digests(folder: Path) -> dict[str, str]:
    """Of every visible file."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.startswith(".")
    }


def test_workers_and_batches_change_no_byte(dataset, tmp_path, monkeypatch):
    config, folder = dataset
    monkeypatch.setattr(generation, "BATCH_CELLS", 1)  # one simulation at a time
    generate(config, tmp_path / "again", workers=1)
    assert digests(tmp_path / "again") == digests(folder)


def test_another_seed_gives_other_simulations_and_no_two_simulations_are_equal(dataset):
    config, _ = dataset
    first, second = solve_split(config, "train", 0, 2)
    assert (first[0] != second[0]).any()
    (other,) = solve_split(config.replace(seed=1), "train", 0, 1)
    (test,) = solve_split(config, "test", 0, 1)
    assert (other[0] != first[0]).any() and (test[0] != first[0]).any()


@pytest.mark.parametrize("case", ["swe", "gray-scott"])
def test_killed_at_any_moment_nothing_looks_complete_and_a_further_run_gives_the_same_bytes(case, tmp_path):
    config = tiny(case)
    generate(config, tmp_path / "undisturbed")
    expected = digests(tmp_path / "undisturbed")
    moments = random.Random(0)
    spawner = subprocess.Popen(
        [sys.executable, "-c", SPAWNER.format(tests=str(Path(__file__).parents[1]))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    kills, longest = 0, 0.02
    with spawner:
        for attempt in range(200):
            folder = tmp_path / "killed"
            spawner.stdin.write(f"{case} {folder}\n")
            spawner.stdin.flush()
            child = int(spawner.stdout.readline())
            time.sleep(moments.uniform(0, longest))
            with contextlib.suppress(ProcessLookupError):  # it has finished
                os.kill(child, signal.SIGKILL)
            ended = int(spawner.stdout.readline())
            kills += ended == -signal.SIGKILL
            # Whatever stands under a final name is whole: the same bytes as undisturbed.
            found = digests(folder) if folder.exists() else {}
            assert found.items() <= expected.items(), attempt
            longest *= 1.4  # the earliest moments first, then all of them
            if ended == 0:
                break
        spawner.stdin.close()
    assert ended == 0 and kills >= 5
    assert generate(config, folder) == []
    assert digests(folder) == expected
    assert not list(folder.rglob("*.partial"))


def test_a_further_scale_joins_a_dataset_and_leaves_the_rest_alone(tmp_path):
    config = tiny("swe")
    assert generate(config, tmp_path) == list(config.splits)
    before = digests(tmp_path)
    further = generation.with_scales(config, [(5,)])
    assert generate(further, tmp_path) == ["s5"]
    after = digests(tmp_path)
    assert all(after[name] == before[name] for name in before if name.startswith("data/"))
    split = open_split(tmp_path, "s5")
    assert split.scale == (5.0,) and split.domain.cells == (200,)
    assert split.provenance["command"].endswith("--scales 5")
    assert set(yaml.safe_load((tmp_path / "dataset.yaml").read_text())["splits"]) == {*config.splits, "s5"}


@pytest.mark.parametrize("make", ["seed", "problem", "other files"])
def test_a_folder_that_holds_something_else_is_refused_and_untouched(make, tmp_path):
    if make == "other files":
        (tmp_path / "thesis.tex").write_text("years of work")
    else:
        generate(tiny("swe"), tmp_path)
    before = digests(tmp_path)
    config = {"seed": tiny("swe", seed=1), "problem": tiny("gray-scott"), "other files": tiny("swe")}[make]
    with pytest.raises(
        FileExistsError, match=r"holds (another dataset .*seed is 0|another dataset .*problem is|other files)"
    ):
        generate(config, tmp_path)
    assert digests(tmp_path) == before


def test_two_runs_at_once_in_one_folder_are_refused(tmp_path):
    with (
        generation._claimed(tmp_path, tiny("swe")),
        pytest.raises(RuntimeError, match="another process is generating"),
    ):
        generate(tiny("swe"), tmp_path)


def test_a_dataset_larger_than_the_disk_is_refused_before_it_starts(tmp_path):
    config = tiny("swe")
    huge = config.replace(splits={"train": {"simulations": 10**12, "scale": (1,)}})
    with pytest.raises(OSError, match=r"needs 1920\.0 TB|needs \d+\.\d GB and .* GB free"):
        generate(huge, tmp_path)
    assert not list(tmp_path.rglob("*.hdf5"))


def test_a_disk_that_fills_up_is_a_clear_error_and_loses_nothing(tmp_path):
    larger = {"train": {"simulations": 3, "scale": (1,)}, "s2": {"simulations": 500, "scale": (2,)}}
    config = tiny("swe").replace(splits=larger)
    generate(config, tmp_path / "whole")
    script = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from small import generate, tiny_dataset as tiny
resource.setrlimit(resource.RLIMIT_FSIZE, (2**21, resource.RLIM_INFINITY))  # beyond 2 MiB, writing fails
try:
    generate(tiny("swe").replace(splits={larger!r}), {str(tmp_path / "full")!r})
except OSError as error:
    print(error)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert "cannot write" in run.stdout and "s2" in run.stdout and "run the same command again" in run.stdout
    full = digests(tmp_path / "full")
    assert "data/s2/swe.hdf5" not in full and "data/train/swe.hdf5" in full
    generate(config, tmp_path / "full")
    assert digests(tmp_path / "full") == digests(tmp_path / "whole")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lorenz", "quick"), "unknown problem 'lorenz': expected one of gray-scott, swe, urban-columns, urban-wind"),
        (("swe", "huge"), "a preset of quick, cpu, paper, got 'huge'"),
        (("swe", "quick", -1), "seed: Input should be greater than or equal to 0"),
        (("swe", "quick", 0, "2,zero"), "scales like 2,10 or 2x1"),
        (("swe", "quick", 0, "0"), "greater than 0"),
        (("swe", "quick", 0, "1.3"), "not whole positive numbers"),
        (("swe", "quick", 0, "2x3"), "one per axis"),
        (("gray-scott", "quick", 0, None, ["cells=[0,64]"]), "cells.0: Input should be greater than 0"),
        (("gray-scott", "quick", 0, None, ["extent=[-1,64]"]), "extent.0: Input should be greater than 0"),
        (("gray-scott", "quick", 0, None, ["sizes=3"]), "sizes: Extra inputs are not permitted"),
        (("gray-scott", "quick", 0, None, ["cells"]), "changes like cells="),
    ],
)
def test_settings_that_make_no_dataset_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        problem_named(arguments[0]).generation.configure(*arguments[1:])


def test_an_unstable_time_step_and_an_unknown_split_are_refused(tmp_path):
    config = tiny("gray-scott")
    with pytest.raises(ValueError, match=r"stability limit of 1\.2"):
        generate(config.replace(time_step=1.5), tmp_path)
    assert not list(tmp_path.rglob("*.hdf5"))
    with pytest.raises(ValueError, match="unknown split 'holdout': expected one of train, test, s2"):
        solve_split(config, "holdout", 0, 1)
    with pytest.raises(ValueError, match="at least one worker, got 0"):
        generate(config, tmp_path, workers=0)


def test_a_damaged_description_is_refused(tmp_path):
    generate(tiny("swe"), tmp_path)
    (tmp_path / "dataset.yaml").write_text("problem: [")
    with pytest.raises(ValueError, match=r"dataset\.yaml is damaged .*: restore it, or choose another folder"):
        generate(tiny("swe"), tmp_path)


@pytest.mark.parametrize("dataset", ["swe"], indirect=True)
def test_statistics_that_are_gone_or_altered_are_made_anew(dataset, tmp_path):
    config, folder = dataset
    shutil.copytree(folder, tmp_path / "copy")
    stats = tmp_path / "copy" / "stats.yaml"
    for spoil in (stats.unlink, lambda: stats.write_text(stats.read_text().replace("std", "dev", 1))):
        spoil()
        assert generate(config, tmp_path / "copy") == []
        assert digests(tmp_path / "copy") == digests(folder)


def test_the_card_shows_every_split_and_how_it_was_made(dataset):
    config, folder = dataset
    card = (folder / "README.md").read_text()
    assert f"`farfield generate {config.problem} --preset quick --seed 0 --set cells=" in card
    for name in config.splits:
        assert f"| {name} |" in card and f"![{name}](pictures/{name}.png)" in card
        assert (folder / "pictures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


def test_the_command_line_generates_and_reports_mistakes_in_one_line(tmp_path):
    command = [
        sys.executable,
        "-m",
        "farfield",
        "generate",
        "swe",
        "--preset",
        "quick",
        "--out",
        str(tmp_path / "d"),
    ]
    small = ["--set", "cells=[40]", "--set", "states=3", "--scales", "2,3", "--workers", "1"]
    run = subprocess.run([*command, *small], capture_output=True, text=True)
    assert run.returncode == 0 and "made train, validation, test, s2, s3" in run.stdout, run.stderr
    assert open_split(tmp_path / "d", "s3").domain.cells == (120,)
    run = subprocess.run([*command, "--seed", "3"], capture_output=True, text=True)
    assert run.returncode == 2 and "holds another dataset" in run.stderr and "Traceback" not in run.stderr


# A hundred simulations of shallow water scatter by 3 % of a deviation in the mean and 4 % in the deviation,
# which is most of what is allowed; all 800, of which the published numbers are, by 1 %.
@pytest.mark.parametrize(("problem", "simulations"), [("swe", 800), ("gray-scott", 100)])
def test_training_simulations_have_the_published_statistics(problem, simulations):
    made = problem_named(problem).generation
    config = made.configure("paper")
    trajectories = solve_split(config, "train", 0, simulations)
    changes = np.diff(trajectories, axis=1)
    axes = (0, 1, *range(3, trajectories.ndim))
    found = {
        f"{name}{suffix}": dict(zip(made.fields, getattr(np, name)(values, axis=axes), strict=True))
        for suffix, values in (("", trajectories), ("_delta", changes))
        for name in ("mean", "std")
    }
    for name, fields in distance_from_published(made.published, found).items():
        for field, distance in fields.items():
            assert abs(distance) < (0.15 if name.endswith("_delta") else 0.05), (name, field)
