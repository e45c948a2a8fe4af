"""Steps found in any script's output, and how long each took."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pretune.collector.step_lines import Enough, StepLines
from pretune.datasets import Measure
from pretune.errors import InputError


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")

    def run(lines, came_s=lambda line: float(line), pattern=None):
        path = folder / "output.log"
        path.write_text("".join(f"{line}\n" for line in lines))
        (found,) = StepLines(pattern, came_s).read(path)
        return found

    return run


@pytest.mark.parametrize(
    "line",
    [
        "iter {n}: loss {loss:.4f}, time 120.41ms, mfu 1.20%",
        "step {n}/100 | loss: {loss:.4f} | lr 3e-4",
        "[2025-01-01 10:00:00] Step: {n} - train_loss=9 - Loss = {loss:.4f}",
        "Iteration {n} loss {loss:.4e}",
        "global_step={n}, 'loss': {loss:.4f}, 'grad_norm': 1.0",
    ],
)
def test_usual_lines_need_no_pattern(read, line):
    values = read([line.format(n=n, loss=4 - n / 8) for n in range(16)]).values
    assert values["step_time_s"] == 1.0
    assert (values["loss_first"], values["loss_last"]) == (4.0, pytest.approx(2.125))


@given(st.lists(st.integers(1, 6), min_size=6, max_size=20), st.integers(1, 50))
def test_lines_that_come_in_pieces_make_the_same_time(read, pieces, every):
    ends = [sum(pieces[: n + 1]) for n in range(len(pieces))]
    came = {line: next(end for end in ends if end >= line) / 4 for line in range(1, ends[-1] + 1)}
    found = read([f"step {line * every} loss 2.0" for line in came], came.get)
    assert found.values["step_time_s"] == pytest.approx(0.25 / every)


def test_an_evaluation_s_lines_and_other_ranks_steps_are_no_steps(read):
    lines = [f"iter {n // 2} loss 2.0" for n in range(24)]
    lines[6:6] = ["step 3: train loss 9.0, val loss 9.0"]
    found = read(lines, came_s=lambda line: line / 2)
    assert found.values["step_time_s"] == pytest.approx(1.0, rel=0.1)
    assert found.values["loss_first"] == found.values["loss_last"] == 2.0


def test_a_pattern_of_the_user_s_own_states_the_time(read):
    lines = [f"#{n * 10}, {250 - n} ms each, L=2" for n in range(12)]
    pattern = r"#(?P<step>\d+), (?P<milliseconds>\d+) ms each, L=(?P<loss>\d)"
    values = read(lines, came_s=lambda _: None, pattern=pattern).values
    assert values["step_time_s"] == pytest.approx(0.244, rel=0.01)
    assert values["warmup_windows"] >= 2


def test_a_line_without_a_number_is_a_step(read):
    assert read(["{'loss': 2.5}"] * 9, pattern="'loss': (?P<loss>[^}]+)").values["step_time_s"] == 1.0


def test_enough_is_the_most_steps_or_the_fewest_that_took_the_time():
    measure = Measure(max_warmup_windows=3, min_windows=4, max_windows=10, max_seconds=6.0)

    def told(seconds):
        enough = Enough(None, measure)
        return next(n for n in range(99) if enough.told(f"step {n} loss 1.0\n", n * seconds))

    assert told(0.1) == 3 + 10
    assert told(1.0) == 3 + 6
    assert told(10.0) == 3 + 4
    assert not Enough(None, measure).told("step 1 loss 2.0\nstep 99, no word of it\n", 99.0)


def test_output_without_steps_is_not_of_the_format(read):
    with pytest.raises(InputError, match="has no line of a step"):
        read(["loss is fun", "step on it"])
