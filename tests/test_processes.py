"""Groups of processes, over gloo on the loopback. To start one costs seconds, so each group serves several tests."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from farfield import processes
from farfield.processes import _free_port, launch

MEMBERS = Path(__file__).with_name("members_of_a_group.py")
PULSE = 3.0  # seconds, the timeout


@pytest.fixture(scope="module", params=[(2, "frozen"), (3, "killed")], ids=["2", "3"])
def group(request, tmp_path_factory):
    """The members' results, their last words, and how long the others outlived the last."""
    size, end = request.param
    out = tmp_path_factory.mktemp("group")
    common = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(size)}
    common |= {"OMP_NUM_THREADS": "1", "PULSE": str(PULSE)}
    command = [sys.executable, MEMBERS, out, end]
    members = [
        subprocess.Popen(command, env=common | {"RANK": str(rank)}, stderr=subprocess.PIPE, text=True)
        for rank in range(size)
    ]
    try:
        words = [member.communicate(timeout=300)[1] for member in members[:-1]]
    finally:
        members[-1].kill()
        members[-1].communicate()
    written = max((path.stat().st_mtime for path in out.iterdir()), default=time.time())
    results = [json.loads((out / f"{rank}.json").read_text()) for rank in range(size)]
    return end, results, words, [member.returncode for member in members[:-1]], time.time() - written


def test_processes_equal_one(group):
    """Forward to the tolerance (which either side may be off by), gradients and ten steps of training to 1e-5."""
    _, results, *_ = group
    for result in results:
        for name, (out, *gradients) in result["attention"].items():
            assert out <= 2e-4, name
            assert max(gradients) <= 1e-5, name
        assert result["training"] <= 1e-5
        assert result["members"] == list(range(len(results)))


def test_a_lost_process_ends_the_others_with_a_sentence(group):
    """One that is killed at once, one that is frozen after the timeout."""
    end, _, words, codes, seconds = group
    said = {"killed": "lost another process", "frozen": f"no sign of life for {PULSE:g} s"}[end]
    assert all(codes) and any(said in errors for errors in words), words
    assert seconds < 60  # the wait itself is at most PULSE; machines are loaded


def test_whoever_starts_processes_ends_them_all_and_says_which_was_killed(monkeypatch, capfd):
    monkeypatch.setattr(processes, "_GRACE", 0.2)

    def launched(first, second):
        code = (
            f"import os, signal, sys, time\n{first}\n" + f"if os.environ['RANK'] == '1':\n    {second}\ntime.sleep(600)"
        )
        return launch([sys.executable, "-c", code], 2)

    assert launched("", "os.kill(os.getpid(), signal.SIGKILL)") == 128 + 9
    assert "process 2 of 2 was ended by SIGKILL" in capfd.readouterr().err
    assert launched("", "sys.exit(3)") == 3
    # the last frozen, or deaf, process is ended, too
    assert launched("signal.signal(signal.SIGTERM, signal.SIG_IGN)", "sys.exit(75)") == 75
