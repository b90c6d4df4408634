import pytest

from farfield.data.domain import rollout


def test_a_rollout_starts_with_the_state_and_feeds_each_step_back():
    assert list(rollout(lambda x: 2 * x, 3, 3)) == [3, 6, 12, 24]


def test_a_rollout_is_lazy():
    states = rollout(lambda x: x + 1, 0, 10**12)
    assert [next(states) for _ in range(3)] == [0, 1, 2]


def test_a_negative_number_of_steps_is_refused():
    with pytest.raises(ValueError, match="at least 0, got -1"):
        next(rollout(lambda x: x, 0, -1))
