"""A release: a wheel that predicts with its declared dependencies alone, models that say how they were made."""

import json
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from farfield.extras import EXTRAS, naming_extras
from farfield.runs.run import SHIPPED, shipped_models
from farfield.version import __version__

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README_SNIPPETS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)


def closure(names: list[str]) -> set[str]:
    """Distributions that a plain install brings, with all that they need themselves."""
    found: set[str] = set()
    while names:
        requirement = Requirement(names.pop())
        if requirement.name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        try:
            needed = distribution(requirement.name).requires or []
        except PackageNotFoundError:  # torch's CUDA packages, on a machine without
            continue
        found.add(requirement.name)
        names += needed
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """The wheel that is built from the sdist, as whoever installs from source gets it."""
    out = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--directory", str(out), "--target"]
    subprocess.run([*build, "sdist"], cwd=ROOT, check=True, capture_output=True)
    with tarfile.open(next(out.glob("*.tar.gz"))) as archive:
        archive.extractall(out, filter="data")
    subprocess.run([*build, "wheel"], cwd=out / f"farfield-{__version__}", check=True, capture_output=True)
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def plain(wheel, tmp_path_factory) -> Path:
    """Python of an environment with the wheel and what it declares, and nothing else."""
    if sys.platform == "win32":
        pytest.skip("links the packages into the environment, which Windows allows administrators only")
    folder = tmp_path_factory.mktemp("plain")
    venv.create(folder, with_pip=False)
    packages = next(folder.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)  # a pure wheel is installed by unpacking it
    for name in closure(list(PROJECT["dependencies"])):
        for top in {
            file.parts[0] for file in distribution(name).files or [] if file.parts[0] not in ("..", "__pycache__")
        }:
            source = Path(distribution(name).locate_file(top))
            if source.exists() and not (packages / top).exists():
                (packages / top).symlink_to(source)
    return folder / "bin" / "python"


PREDICTS = """
import farfield, pathlib, sys
assert pathlib.Path(farfield.__file__).is_relative_to(sys.prefix)
for name in {absent!r}:
    try:
        __import__(name)
    except ModuleNotFoundError:
        continue
    sys.exit(name + " is there: this environment is not plain")
for snippet in {snippets!r}:
    exec(snippet)
for use in (lambda: farfield.load("urban-wind-laape"), lambda: farfield.load("hf://some/model"),
            lambda: farfield.train(farfield.Dataset.from_arrays(
                {{"T": np.random.rand(9, 4, 32)}}, spacing=1.0, time_step=1.0), out="unused")):
    try:
        use()
    except ModuleNotFoundError as error:
        print(error)
"""


def test_a_wheel_predicts_in_an_environment_with_its_dependencies_alone(plain, tmp_path):
    script = PREDICTS.format(absent=[name for name in EXTRAS if name != "vtk"], snippets=README_SNIPPETS[:2])
    done = subprocess.run([plain, "-I", "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"pip install '(.*)'", done.stdout) == ["farfield[wind]", "farfield[hub]", "farfield[train]"]


def test_the_wheel_holds_the_shipped_models_and_its_types(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for model in shipped_models():
        for part in ("config.yaml", "dataset.json", "provenance.json", "best.safetensors"):
            assert f"farfield/shipped/{model}/{part}" in names
    assert "farfield/py.typed" in names
    assert not [name for name in names if name.startswith(("tests", "docs"))]


@pytest.mark.parametrize("model", shipped_models())
def test_every_shipped_model_says_how_it_was_made(model):
    provenance = json.loads((SHIPPED / model / "provenance.json").read_text())
    settings = yaml.safe_load((SHIPPED / model / "config.yaml").read_text())
    problem = settings.get("problem", settings.get("case"))
    assert provenance["commands"] and provenance["commands"][0].startswith(f"farfield train {problem} ")
    name, command = settings["encoding"]["name"], provenance["commands"][0]
    assert f"--encoding {name}" in command or (name == "laape" and "--encoding" not in command)  # the default
    assert provenance["seed"] == settings["seed"]
    assert {"torch", "numpy", "python"} <= set(provenance["versions"])
    assert not re.search(r"(?<![\w.])/\w", json.dumps(provenance)), "a folder of somebody's machine"


def test_every_missing_package_has_an_extra_that_brings_it():
    extras = PROJECT["optional-dependencies"]
    assert set(EXTRAS.values()) <= set(extras)
    for name, extra in EXTRAS.items():
        with (
            pytest.raises(ModuleNotFoundError, match=rf"needs {name}, .* pip install 'farfield\[{extra}\]'"),
            naming_extras(),
        ):
            raise ModuleNotFoundError(f"No module named '{name}.part'", name=f"{name}.part")
    with pytest.raises(ModuleNotFoundError, match=r"farfield\[view\]"), naming_extras(), naming_extras("view"):
        raise ModuleNotFoundError("No module named 'matplotlib'", name="matplotlib")
    with pytest.raises(ModuleNotFoundError, match=r"^No module named 'other'"), naming_extras():
        raise ModuleNotFoundError("No module named 'other'", name="other")


def test_the_citation_is_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert re.search(rf"^## {re.escape(__version__)}$", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
