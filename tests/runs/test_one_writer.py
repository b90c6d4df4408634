"""A folder has one writer; readers, and the locks of the dead, stand in nobody's way."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from rich.console import Console

from farfield.evaluation.rows import Record, Row
from farfield.files import locked
from farfield.problems import problem_named
from farfield.runs.run import Run
from farfield.training.loop import fit

HOLDER = """
import sys, time
from pathlib import Path
from farfield.files import locked
with locked(Path(sys.argv[1]), "busy"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_lock_keeps_others_out_until_its_process_ends_however_it_does(tmp_path):
    lock = tmp_path / "folder" / ".lock"
    holder = subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE)
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(RuntimeError, match="somebody writes there"), locked(lock, "somebody writes there"):
        pass
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    assert lock.exists()  # the dead cannot tidy up
    with locked(lock, "somebody writes there"):
        pass
    assert not lock.exists()


def test_of_many_that_want_a_lock_one_at_a_time_has_it(tmp_path):
    inside, most = [], []

    def enter():
        for _ in range(40):
            with locked(tmp_path / ".lock"):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0)
                inside.pop()

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(most) == 160 and max(most) == 1
    assert not list(tmp_path.iterdir())


def test_a_second_training_into_a_folder_is_refused_and_changes_nothing(tiny, tmp_path):
    run, problem = Run(tmp_path / "run"), problem_named("swe")
    short = tiny.changed({"training.steps": 2})
    fit(problem, short, run, console=Console(quiet=True))
    before = {path: path.read_bytes() for path in run.folder.iterdir() if path.is_file()}
    with run.begun(short, run.dataset(), resume=True):  # what every training does as long as it takes
        for resume in (True, False):
            with pytest.raises(RuntimeError, match=r"another process is training into .*run: wait for it"):
                fit(problem, short, run, resume=resume, console=Console(quiet=True))
        Record.open(run, {})  # an evaluation may read meanwhile
    assert {path: path.read_bytes() for path in run.folder.iterdir() if path.is_file()} == before


@pytest.mark.parametrize("resume", [False, True], ids=["begun", "continued"])
def test_what_a_killed_training_left_half_written_is_gone_when_it_is_begun_or_continued(tiny, tmp_path, resume):
    run = Run(tmp_path / "run")
    if resume:
        run.create(tiny, {"spec": 1})
    run.folder.mkdir(exist_ok=True)
    for path in (run.config_path, run.dataset_path, run.state_path, run.losses_path, run.finetune_path):
        path.with_name(f".{path.name}.0123abcd.partial").write_text("half")
    with run.begun(tiny, {"spec": 1}, resume=resume):
        assert sorted(path.name for path in run.folder.iterdir()) == [".lock", "config.yaml", "dataset.json"]


def test_what_two_evaluations_find_at_once_is_all_kept(tmp_path):
    run = Run(tmp_path)
    first, second = (Record.open(run, {scale: f"data {scale}"}) for scale in ("1", "10"))
    for record, scale in ((first, "1"), (second, "10")):
        record.add(scale, {"pairs": 1}, [Row("swe", "laape", 0, scale, "v", "l1_step", 1, 0.1, 1)], {})
    assert [row.scale for row in Record.open(run, {}).rows] == ["1", "10"]
    assert set(Record.open(run, {}).done) == {"1", "10"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evaluation.csv", "evaluation.json", "samples.npz"]
