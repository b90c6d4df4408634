import csv
import shutil
from pathlib import Path

import pytest
from browser import look, needs_chromium, read_page

from farfield.api import report as write_report
from farfield.evaluation.rows import Row, write_rows
from farfield.problems import PROBLEMS, problem_named
from farfield.report.saved import Results, read_runs
from farfield.report.tables import all_tables, error_table, percent


def run_of(folder: Path, encoding: str, seed: int, errors: dict[str, tuple[float, float]]) -> Path:
    """A run that has left nothing but rows."""
    folder.mkdir(parents=True)
    rows = [
        Row("swe", encoding, seed, scale, field, metric, 1, value, 10)
        for scale, values in errors.items()
        for field, value in zip(("v", "h"), values, strict=True)
        for metric in ("l1_step", "l2_step", "l1_rollout", "l2_rollout")
    ]
    write_rows(folder / "evaluation.csv", rows)
    return folder


def test_the_published_table_is_complete():
    numbers = {(name, *key): text for name in PROBLEMS for key, text in problem_named(name).shown.published.items()}
    both = 2 * 2 * 3 * 2  # urban wind: beside AB-SWIFT here and beside the columns
    assert len(numbers) == 2 * 3 * 5 * 2 + both
    assert numbers["swe", "rope", "10", "v", "l1_step"] == "11.4"
    assert numbers["gray-scott", "laape", "3", "V", "l1_step"] == "28"
    assert numbers["gray-scott", "laspe", "7", "U", "l1_step"] == "80"
    assert numbers["urban-wind", "rope", "5", "velocity", "l1_buildings"] == "34.5"
    assert numbers["urban-wind", "laape", "2", "velocity", "l1_wake"] == "3.3"


def test_the_table_shows_mean_and_spread_over_seeds_beside_the_paper(tmp_path):
    runs = [
        run_of(tmp_path / "a", "laape", 0, {"1": (0.010, 0.02), "10": (0.03, 0.02)}),
        run_of(tmp_path / "b", "laape", 1, {"1": (0.012, 0.02), "10": (0.03, 0.02)}),
        run_of(tmp_path / "c", "rope", 0, {"1": (0.010, 0.02), "10": (2.5, float("inf"))}),
    ]
    table = error_table(Results("swe", read_runs(runs), problem_named("swe").shown))
    assert table.header == ["encoding", "", "seeds", "s = 1, Δv", "s = 1, Δh", "s = 10, Δv", "s = 10, Δh", "growth"]
    assert table.rows == [
        ["RoPE", "here", "1", "1.00", "2.00", "250", "diverges", "250"],
        ["RoPE", "paper", "", "1.1", "1.2", "11.4", "10.9", ""],
        # stdev(1.0, 1.2) = 0.1414; growth 3.0 / 1.1 and 2.0 / 2.0
        ["LAAPE", "here", "2", "1.10 ± 0.14", "2.00 ± 0.00", "3.00 ± 0.00", "2.00 ± 0.00", "2.73 / 1"],
        ["LAAPE", "paper", "", "1.2", "1.2", "1.1", "1.1", ""],
    ]
    assert "| LAAPE | here | 2 | 1.10 ± 0.14 |" in table.markdown()
    assert "<td>1.10 ± 0.14</td>" in table.html()


def test_the_microscale_table_has_the_papers_columns(tmp_path):
    errors = {"1": (0.044, 0.011), "5": (0.2, 0.0455)}  # among the buildings, in the wake
    rows = [
        Row("urban-wind", "laape", 0, scale, field, f"{norm}_{region}", 1, value, 20)
        for scale, values in errors.items()
        for region, value in zip(("buildings", "wake"), values, strict=True)
        for field in ("velocity", "pressure")
        for norm in ("l1", "l2")
    ]
    (tmp_path / "run").mkdir()
    write_rows(tmp_path / "run" / "evaluation.csv", rows)
    results = Results("urban-wind", read_runs([tmp_path / "run"]), problem_named("urban-wind").shown)
    table = error_table(results)
    columns = ["s = 1, buildings", "s = 5, buildings", "s = 1, wake", "s = 5, wake"]
    assert table.header == ["encoding", "", "seeds", *columns, "growth"]
    assert table.rows == [
        ["LAAPE", "here", "1", "4.40", "20.0", "1.10", "4.55", "4.55 / 4.14"],
        ["LAAPE", "paper", "", "4.4", "12.8", "1.1", "4.2", ""],
    ]
    fields = next(t for t in all_tables(results) if t.name == "urban-wind-fields")
    assert fields.header[2:4] == ["s = 1, velocity", "s = 1, pressure"]
    assert fields.rows[1] == ["LAAPE", "wake", "1.10", "1.10", "4.55", "4.55"]
    page = write_report([tmp_path / "run"], tmp_path / "report").read_text()
    assert (
        "L1 error of velocity (buildings) / velocity (wake) is 4.40 / 1.10 % at s = 1 and 20.0 / 4.55 % at s = 5"
        in page
    )
    with (tmp_path / "report" / "tables" / "urban-wind-numbers.csv").open() as file:
        assert [r["paper_percent"] for r in csv.DictReader(file)] == ["4.4", "12.8", "1.1", "4.2"]


def test_maps_and_cuts_of_the_wind_are_drawn_from_saved_arrays(urban_reproduced, tmp_path):
    _, out, _ = urban_reproduced
    names = {path.stem for path in (out / "report" / "figures").glob("*.png")}
    planes = {f"s{scale}-{kind}" for scale in (1, 2, 5) for kind in ("map", "cut")}
    assert names == {f"urban-wind-{name}" for name in planes | {"error-scale", "training", "times"}}
    (tmp_path / "run").mkdir()
    for name in ("evaluation.csv", "samples.npz"):  # no weights, no data, no configuration
        shutil.copy(out / "laape-seed0" / name, tmp_path / "run")
    page = write_report([tmp_path / "run"], tmp_path / "report").read_text()
    assert (tmp_path / "report" / "figures" / "urban-wind-s5-map.png").stat().st_size > 10_000
    assert "wind of LAAPE, of the truth, and the error" in page and "&quot;heights&quot;" in page, "a scene is inside"


def test_numbers_are_printed_with_the_digits_they_deserve():
    assert [percent(x) for x in (0.00123, 0.0999, 0.5, 9.9, 1e9)] == ["0.12", "9.99", "50.0", "990", "1.0e+11"]


def test_rows_alone_make_a_page(tmp_path):
    run = run_of(tmp_path / "a", "laape", 0, {"1": (0.01, 0.02)})
    page = write_report([run], tmp_path / "report")
    assert "LAAPE: the L1 error of v / h is 1.00 / 2.00 % at s = 1." in page.read_text()
    with (tmp_path / "report" / "tables" / "swe-numbers.csv").open() as file:
        assert [row["percent"] for row in csv.DictReader(file)] == ["1", "2"]


def test_the_report_is_rebuilt_from_the_saved_files_byte_for_byte(reproduced, tmp_path):
    _, out, _ = reproduced
    kept = ("evaluation.csv", "config.yaml", "dataset.json", "provenance.json", "losses.csv", "validation.csv")
    copies = []
    for run in ("laape-seed0", "laspe-seed0"):  # no weights, no data, another order
        (tmp_path / run).mkdir()
        for name in (*kept, "samples.npz"):
            shutil.copy(out / run / name, tmp_path / run)
        copies.append(tmp_path / run)
    page = write_report(copies, tmp_path / "report")
    for path in (out / "report").rglob("*.*"):
        assert (page.parent / path.relative_to(out / "report")).read_bytes() == path.read_bytes()


def test_every_picture_of_the_paper_is_drawn(reproduced):
    plan, out, _ = reproduced
    names = {path.stem for path in (out / "report" / "figures").glob("*.png")}
    expected = {"error-scale", "rollout-curves", "step-curves", "s1", "s3", "training", "times"}
    expected |= {"rollout"} if plan.problem.name == "gray-scott" else set()
    assert names == {f"{plan.problem.name}-{name}" for name in expected}


def test_the_page_is_whole_without_a_browser_to_look_at_it(reproduced):
    """Contents, spelled-out encodings, a figure before the tables, tables in boxes that scroll; all in one file."""
    _, out, _ = reproduced
    page = read_page(out / "report" / "index.html")
    assert page.wrong == []
    assert len(page.images) >= 6 and page.count["table"] == 6 == page.boxed["table", "scroll"]
    assert page.order.index("img") < page.order.index("table") and page.order.index("nav") < page.order.index("img")
    assert "local anisotropic asymmetric positional encoding" in page.text and page.count["iframe"] == 1


@needs_chromium
@pytest.mark.parametrize(("width", "height"), [(390, 844), (1400, 900)])
def test_the_page_opens_in_a_browser_without_complaint(reproduced, tmp_path, width, height):
    """Nothing is cut off, every picture loads, the console stays silent, a click enlarges a picture."""
    _, out, _ = reproduced
    click = 'document.querySelector("figure img").click();'
    seen = look(out / "report" / "index.html", tmp_path, width, height, click)
    assert seen.errors == [] and seen.measured["wide"] == [] and seen.measured["broken"] == 0
    assert seen.measured["width"] <= width and seen.measured["images"] >= 6
    assert seen.dom.count("<table>") == 6 and seen.dom.count("<dialog open") == 1
    assert seen.dom.count('class="wide"') >= (3 if width == 390 else 0), "tables say that they scroll"
    for told in ("local anisotropic asymmetric positional encoding", 'href="#figures0"', "srcdoc="):
        assert told in seen.dom


def test_bad_input_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="has not been evaluated: run `farfield evaluate"):
        write_report([tmp_path], tmp_path / "report")
    runs = [run_of(tmp_path / name, "laape", 0, {"1": (0.1, 0.1)}) for name in "ab"]
    with pytest.raises(ValueError, match="are both swe laape 0: give one of them"):
        write_report(runs, tmp_path / "report")
    with pytest.raises(ValueError, match="at least one"):
        write_report([], tmp_path / "report")
    (tmp_path / "a" / "best.safetensors").write_bytes(b"trained further since")
    (tmp_path / "a" / "evaluation.json").write_text('{"weights": "of before"}')
    with pytest.raises(ValueError, match="was evaluated with other weights than it has now: run `farfield evaluate"):
        write_report(runs[:1], tmp_path / "report")
    (tmp_path / "a" / "evaluation.json").write_text('{"weights": ')
    with pytest.raises(ValueError, match=r"evaluation\.json is damaged"):
        write_report(runs[:1], tmp_path / "report")
    (tmp_path / "b" / "samples.npz").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(ValueError, match=r"samples\.npz is truncated, damaged or not"):
        write_report(runs[1:], tmp_path / "report")


def test_means_over_seeds_are_of_one_experiment(tmp_path):
    runs = [run_of(tmp_path / str(seed), "laape", seed, {"1": (0.1, 0.1)}) for seed in (0, 1)]
    for seed, folder in enumerate(runs):
        (folder / "config.yaml").write_text(f"seed: {seed}\ndataset: data-{seed}\nmodel: {{width: 96}}\n")
    assert len(read_runs(runs)) == 2
    (runs[1] / "config.yaml").write_text("seed: 1\nmodel: {width: 96, newer: 1}\n")  # a setting that was added since
    assert len(read_runs(runs)) == 2
    (runs[1] / "config.yaml").write_text("seed: 1\nmodel: {width: 48}\n")
    with pytest.raises(ValueError, match=r"cannot be averaged, they differ in model\.width: give"):
        read_runs(runs)


def test_a_row_that_a_killed_process_left_incomplete_is_passed_over(tmp_path):
    run = run_of(tmp_path / "a", "laape", 0, {"1": (0.1, 0.1)})
    (run / "losses.csv").write_text("step,loss,seconds\n1,0.5,3.0\n2,0.")
    assert read_runs([run])[0].losses == [{"step": 1.0, "loss": 0.5, "seconds": 3.0}]


def test_rollouts_alone_make_a_page(tmp_path):
    (tmp_path / "run").mkdir()
    write_rows(tmp_path / "run" / "evaluation.csv", [Row("swe", "laape", 0, "1", "v", "l1_rollout", 1, 0.1, 2)])
    assert write_report([tmp_path / "run"], tmp_path / "report").exists()
