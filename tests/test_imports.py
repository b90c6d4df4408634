"""What is imported when: help answers at once, and a trained model needs neither the training loop nor a solver."""

import json
import subprocess
import sys

import pytest

HEAVY = ("torch", "lightning_fabric", "pyvista", "vtkmodules", "matplotlib", "numba", "scipy", "h5py", "numpy")
TRAINING = ("lightning_fabric", "farfield.training", "tensorboard", "lion_pytorch")
SOLVING = ("numba", "farfield.problems.swe.solver", "farfield.problems.gray_scott.solver")


def imported_by(script: str) -> set[str]:
    """The modules that a new process has at the end of a script."""
    report = "import json, sys; print('\\n' + json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", f"{script}\n{report}"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def found(modules: set[str], banned: tuple[str, ...]) -> list[str]:
    return sorted(m for m in modules if any(m == name or m.startswith(f"{name}.") for name in banned))


HELP = """
import sys
from farfield.cli import main
sys.argv = ["farfield", *{words!r}]
try:
    main()
except SystemExit as left:
    assert left.code == 0
"""


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["predict", "--help"], ["bench", "--help"]])
def test_help_imports_nothing_heavy(words):
    assert found(imported_by(HELP.format(words=words)), HEAVY) == []


def test_the_package_itself_imports_nothing_heavy():
    modules = imported_by("import farfield; assert 'load' in dir(farfield)")
    assert found(modules, HEAVY) == []
    assert {name for name in modules if name.startswith("farfield")} == {"farfield", "farfield.version"}


@pytest.mark.parametrize("model", ["swe-laape", "urban-wind-laape"])
def test_loading_a_model_imports_neither_the_training_loop_nor_a_solver(model):
    script = f"import farfield, farfield.prediction.files; assert farfield.load({model!r}, device='cpu').problem"
    modules = imported_by(script)
    # the columns' physics is compiled by numba, as solvers are
    solving = [name for name in SOLVING if (name, model) != ("numba", "urban-wind-laape")]
    assert found(modules, (*TRAINING, *solving, "farfield.problems.urban_wind.solver")) == []
    if model == "swe-laape":
        assert found(modules, ("matplotlib", "pyvista", "vtkmodules", "trimesh")) == []


def test_every_public_name_is_there():
    import farfield

    assert all(getattr(farfield, name) is not None for name in farfield.__all__)
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        farfield.lode  # noqa: B018
