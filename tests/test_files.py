import pytest

from farfield.files import atomic_path, atomic_write_text, this_command


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path):
    target = tmp_path / "table.csv"
    atomic_write_text(target, "old")
    with pytest.raises(OSError, match="disk"), atomic_path(target) as partial:
        partial.write_text("new, half wri")
        raise OSError("disk full")
    assert target.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["table.csv"]


def test_a_finished_write_replaces_the_old_file(tmp_path):
    target = tmp_path / "new" / "table.csv"
    atomic_write_text(target, "old")
    atomic_write_text(target, "new")
    assert target.read_text() == "new"


@pytest.mark.parametrize("program", ["/some/where/bin/farfield", "/some/where/farfield/__main__.py"])
def test_a_command_is_told_as_a_user_would_type_it(monkeypatch, program):
    monkeypatch.setattr("sys.argv", [program, "evaluate", "runs/mine", "--scales", "1 2"])
    assert this_command() == "farfield evaluate runs/mine --scales '1 2'"
