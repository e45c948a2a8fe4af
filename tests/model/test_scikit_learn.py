"""scikit-learn's own checks, on every surrogate: as they are where they need no data, else on arrays.

Surrogates take polars frames with named columns, which no check of scikit-learn hands over: all
that fit or predict would fail on a surrogate itself. :class:`Arrays` puts the rows of a matrix into such
a frame (x0, x1, ... become knobs, exp(y) the throughput), so that they fit and predict it after all;
none is left out. What a frame can do besides is tested below.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import polars as pl
import pytest
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, GroupKFold, cross_val_score
from sklearn.utils import estimator_checks
from sklearn.utils.estimator_checks import parametrize_with_checks
from sklearn.utils.validation import check_is_fitted, validate_data
from synthetic_platforms import candidates, trials

from pretune.model import BoostedTrees, NoPhysics, RandomSurrogate, Surrogate, TransferSurrogate
from pretune.model.base import Predictor
from pretune.model.columns import configurations
from pretune.model.evaluation import predictions, scores

ALL = [BoostedTrees(n_estimators=20), Surrogate(), TransferSurrogate("slow"), RandomSurrogate()]
WITHOUT_DATA = [
    estimator_checks.check_estimator_cloneable,
    estimator_checks.check_estimator_repr,
    estimator_checks.check_estimator_tags_renamed,
    estimator_checks.check_valid_tag_types,
    estimator_checks.check_no_attributes_set_in_init,
    estimator_checks.check_do_not_raise_errors_in_init_or_set_params,
    estimator_checks.check_get_params_invariance,
    estimator_checks.check_set_params,
    estimator_checks.check_mixin_order,
]


@pytest.mark.parametrize("check", WITHOUT_DATA, ids=lambda check: check.__name__)
@pytest.mark.parametrize("surrogate", ALL, ids=repr)
def test_checks_that_need_no_data(surrogate: Predictor, check: Any) -> None:
    check(type(surrogate).__name__, clone(surrogate))


@pytest.mark.parametrize("made", [BoostedTrees, Surrogate, RandomSurrogate])  # a transfer needs its target
def test_defaults_make_an_estimator(made: type[Predictor]) -> None:
    estimator_checks.check_parameters_default_constructible(made.__name__, made())


class Arrays(RegressorMixin, BaseEstimator):
    """A surrogate behind matrices: the rows of X are configurations, y is log throughput."""

    def __init__(self, surrogate: Any = None) -> None:
        self.surrogate = surrogate

    def fit(self, X: Any, y: Any) -> Self:
        X, y = validate_data(self, X, y, y_numeric=True, dtype=np.float64)
        told = self._frame(X).with_columns(pl.Series("tokens_per_s_per_device", np.exp(y)))
        self.surrogate_ = clone(self.surrogate).fit(told)
        return self

    def predict(self, X: Any) -> Any:
        check_is_fitted(self)
        return self.surrogate_.predict(self._frame(validate_data(self, X, reset=False))).log_mean

    def _frame(self, X: Any) -> pl.DataFrame:
        frame = pl.DataFrame(
            np.asarray(X, dtype=np.float64), schema=[f"knob.x{i}" for i in range(X.shape[1])]
        )
        return frame.with_columns(pl.lit("slow").alias("platform.name"))


@parametrize_with_checks(
    [
        Arrays(BoostedTrees(NoPhysics(), n_estimators=20)),
        Arrays(TransferSurrogate("slow", NoPhysics())),
        Arrays(Surrogate(NoPhysics())),
    ]
)
def test_checks_on_arrays(estimator: Arrays, check: Any) -> None:
    check(estimator)


@pytest.mark.parametrize("surrogate", ALL, ids=repr)
class TestAnEstimator:
    """What the checks on arrays say of a matrix, said of frames of trials."""

    def test_unfitted_says_so(self, surrogate: Predictor, tmp_path: Any) -> None:
        with pytest.raises(NotFittedError):
            clone(surrogate).predict(candidates("slow"))
        with pytest.raises(NotFittedError):
            clone(surrogate).save(tmp_path)
        check_is_fitted(clone(surrogate).fit(trials("slow", 5)))

    def test_fit_returns_itself_and_leaves_parameters_and_trials_alone(self, surrogate: Predictor) -> None:
        table = trials("capped", 30)
        before, made = table.clone(), clone(surrogate)
        parameters = made.get_params()
        assert made.fit(table) is made
        assert made.get_params() == parameters
        assert table.equals(before)
        assert all(name.endswith("_") or name.startswith("_") for name in set(vars(made)) - set(parameters))

    def test_fitting_again_changes_nothing(self, surrogate: Predictor) -> None:
        made, rows = clone(surrogate).fit(trials("slow", 30)), candidates("slow")
        first, again = made.predict(rows), made.fit(trials("slow", 30)).predict(rows)
        assert np.array_equal(first.log_mean, again.log_mean)
        assert np.array_equal(first.low, again.low)

    def test_fitting_on_others_forgets_the_first(self, surrogate: Predictor) -> None:
        rows = candidates("slow")
        fresh = clone(surrogate).fit(trials("half", 30)).predict(rows)
        refitted = clone(surrogate).fit(trials("capped", 30)).fit(trials("half", 30)).predict(rows)
        assert np.array_equal(fresh.log_mean, refitted.log_mean)

    def test_a_row_is_predicted_alike_in_any_company(self, surrogate: Predictor) -> None:
        made, rows = clone(surrogate).fit(trials("slow", 30)), candidates("slow")
        together = made.predict(rows).log_mean
        assert made.predict(rows[::-1]).log_mean[::-1] == pytest.approx(together, rel=1e-9)
        assert made.predict(rows[7:9]).log_mean == pytest.approx(together[7:9], rel=1e-9)


def accuracy(fitted: Predictor, frame: pl.DataFrame, *_: None) -> float:
    return -scores(predictions(fitted, frame))["median_absolute_relative_error"]


def test_model_selection_takes_frames_and_groups() -> None:
    table = trials("slow", 60)
    groups = np.unique(configurations(table), return_inverse=True)[1]
    folds = GroupKFold(3)
    ours = cross_val_score(BoostedTrees(n_estimators=40), table, groups=groups, cv=folds, scoring=accuracy)
    guess = cross_val_score(RandomSurrogate(), table, groups=groups, cv=folds, scoring=accuracy)
    assert ours.min() > guess.max()
    search = GridSearchCV(BoostedTrees(), {"n_estimators": [1, 40]}, cv=folds, scoring=accuracy)
    assert search.fit(table, groups=groups).best_params_ == {"n_estimators": 40}
