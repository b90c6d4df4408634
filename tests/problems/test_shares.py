"""A dataset made by several jobs has the bytes of one made by one."""

import pytest
from small import generate, tiny_dataset

from farfield.problems.share import PARTS, Share


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_parts_make_the_same_bytes_as_the_whole(tmp_path):
    config = tiny_dataset("swe")
    assert generate(config, tmp_path / "whole") == list(config.splits)
    shared = tmp_path / "shared"
    for part in (3, 1):  # in any order; one of the parts is empty for splits of two simulations
        assert generate(config, shared, share=Share(part, 3)) == []
    with pytest.raises(ValueError, match="still needs --part 2/3"):
        generate(config, shared, share=Share(merge=True))
    kept = next((shared / PARTS / "3").glob("1-train.npy"))
    (kept.parent / ".2-train.npy.0.partial").write_text("of a job that was killed")
    time = kept.stat().st_mtime_ns
    assert generate(config, shared, share=Share(1, 3)) == []  # again: nothing is made twice
    assert kept.stat().st_mtime_ns == time
    assert generate(config, shared, share=Share(2, 3)) == list(config.splits)  # the last one joins them
    assert contents(shared) == contents(tmp_path / "whole")


@pytest.mark.parametrize("part", ["0/2", "3/2", "2", "a/b", "1/2/3"])
def test_parts_that_are_none_are_refused(part):
    with pytest.raises(ValueError, match="expected"):
        Share.parse(part, False)
