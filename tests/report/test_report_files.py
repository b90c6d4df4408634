"""What a report writes: inside its folder, over nothing, and as plain text whatever the names in its rows."""

import hashlib

import pytest

from farfield.api import report
from farfield.evaluation.rows import Row, write_rows
from farfield.report.tables import Table, escape_markdown


def rows_of(folder, problem="swe", field="v", values=(0.1, 0.2)):
    folder.mkdir(parents=True)
    rows = [
        Row(problem, "laape", 0, scale, field, metric, 1, value, 10)
        for scale, value in zip(("1", "2"), values, strict=True)
        for metric in ("l1_step", "l2_step", "l1_rollout")
    ]
    write_rows(folder / "evaluation.csv", rows)
    return folder


def digests(folder):
    return {p: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def test_names_in_the_rows_lead_out_of_no_folder_and_into_no_markup(tmp_path):
    evil = "../../../up $\\frac | [a](b) <script>alert(1)</script>"
    run = rows_of(tmp_path / "deep" / "runs" / "a", evil, "v|*x* $\\bad{")
    before = digests(tmp_path)
    page = report([run], tmp_path / "deep" / "report")
    written = {path for path in tmp_path.rglob("*") if path.is_file()} - set(before)
    assert written and all(path.is_relative_to(page.parent) for path in written)
    assert digests(tmp_path).items() >= before.items()
    tables = [path.read_text() for path in sorted(page.parent.glob("tables/*.md"))]
    assert tables and not any("<script" in text or "[a](b)" in text for text in tables)
    assert page.read_text().count("<script") == 1  # our own
    for text in tables:
        caption, _, header, rule, *rows = text.splitlines()
        assert evil not in caption
        columns = {line.replace("\\|", "").count("|") for line in (header, rule, *rows)}
        assert len(columns) == 1, text


def test_markdown_shows_text_as_it_is():
    assert escape_markdown("L1 error [%], 1.10 ± 0.14 – s = 2x1") == "L1 error [%], 1.10 ± 0.14 – s = 2x1"
    assert escape_markdown("a|b\nc_d [x](y) ![z](w) <b> & `c`") == (r"a\|b c\_d [x\](y) ![z\](w) &lt;b&gt; &amp; \`c\`")
    assert escape_markdown("# [r]: http://x") == r"\# [r\]: http://x"
    assert Table("t", "c", ["a|b"], [["- 1"]]).markdown().splitlines()[2:] == [r"| a\|b |", "| --- |", r"| \- 1 |"]


def test_an_error_that_is_no_number_is_left_out_of_tables_and_figures(tmp_path):
    page = report([rows_of(tmp_path / "a", values=(0.1, float("nan")))], tmp_path / "report")
    table = (page.parent / "tables" / "swe-l1.md").read_text()
    assert "| LAAPE | here | 1 | 10.0 | – | – |" in table and "diverges" not in table


def test_a_report_is_not_written_over_another_unless_forced(tmp_path):
    page = report([rows_of(tmp_path / "a")], tmp_path / "report")
    before = digests(page.parent)
    other = rows_of(tmp_path / "b", values=(0.3, 0.4))
    with pytest.raises(ValueError, match=r"index\.html exists: choose another --out, or overwrite with --force"):
        report([other], page.parent)
    assert digests(page.parent) == before
    page.unlink()  # any other file of it is worth as much
    with pytest.raises(ValueError, match=r"and \d+ more exist: choose another --out"):
        report([other], page.parent)
    report([other], page.parent, force=True)
    assert digests(page.parent) != before
