"""pretune's sampler in Optuna itself."""

import pickle

import optuna
import pytest

from pretune.errors import InputError
from pretune.tuner.sampler import MOST_POINTS, PretuneSampler, points

SPACE = {
    "block": optuna.distributions.CategoricalDistribution([16, 32, 64, 128, 256]),
    "warps": optuna.distributions.IntDistribution(1, 8),
    "stages": optuna.distributions.IntDistribution(1, 4),
    "unroll": optuna.distributions.CategoricalDistribution([False, True]),
}


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.ERROR)


@pytest.fixture
def objective(kernel):
    return lambda trial: kernel.seconds(**suggested(trial))


def suggested(trial):
    return {
        "block": trial.suggest_categorical("block", [16, 32, 64, 128, 256]),
        "warps": trial.suggest_int("warps", 1, 8),
        "stages": trial.suggest_int("stages", 1, 4),
        "unroll": trial.suggest_categorical("unroll", [False, True]),
    }


@pytest.mark.parametrize("space", [None, SPACE])
def test_history_makes_the_first_trial_good_and_the_sixth_nearly_the_best(kernel, objective, space):
    study = optuna.create_study(sampler=PretuneSampler(kernel.history, space))
    study.optimize(objective, n_trials=6, catch=MemoryError)
    best = kernel.seconds(64, 2, 3, False)
    assert best / study.trials[0].value > 0.8
    assert best / study.best_value > 0.9
    tried = [tuple(trial.params.items()) for trial in study.trials]
    assert len(set(tried)) == 6


def test_failures_and_pending_trials_are_not_tried_again(kernel, objective):
    sampler = PretuneSampler(kernel.history, SPACE)
    study = optuna.create_study(sampler=sampler)
    asked = [study.ask() for _ in range(4)]  # nobody told anything yet
    for trial in asked:
        try:
            objective(trial)
        except MemoryError:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
    assert len({tuple(trial.params.items()) for trial in asked}) == 4


def test_ranges_become_points_and_large_spaces_a_sample():
    kinds = optuna.distributions
    small = points(
        {"a": kinds.IntDistribution(1, 9, step=2), "b": kinds.FloatDistribution(0, 1, step=0.5)}, 0
    )
    assert len(small) == 15
    logs = points({"a": kinds.FloatDistribution(1e-4, 1e-1, log=True)}, 0)["a"].to_list()
    assert logs[0] == 1e-4
    assert logs[-1] == 1e-1
    large = {f"x{i}": kinds.FloatDistribution(0, 1) for i in range(5)}
    assert 0 < len(points(large, 0)) <= MOST_POINTS


def test_two_objectives_are_refused():
    study = optuna.create_study(directions=["minimize", "minimize"], sampler=PretuneSampler(None, SPACE))
    with pytest.raises(InputError, match="one objective"):
        study.ask().suggest_int("warps", 1, 8)


def test_several_threads_ask_in_turn(kernel, objective):
    study = optuna.create_study(sampler=PretuneSampler(kernel.history))
    study.optimize(objective, n_trials=8, n_jobs=4, catch=(MemoryError,))
    assert len(study.trials) == 8
    assert pickle.loads(pickle.dumps(study.sampler)).name == "here"


def test_a_history_that_is_none_is_refused_at_once():
    with pytest.raises(InputError, match="history: is a str"):
        PretuneSampler("shipped")
