"""Correlations and non-negative least squares."""

import numpy as np
import pytest

from segtailor.core.statistics import non_negative_fit, pearson, ranks, spearman


def test_equal_values_share_the_mean_of_their_ranks() -> None:
    assert ranks([3.0, 1.0, 3.0, 2.0]).tolist() == [2.5, 0.0, 2.5, 1.0]


def test_a_correlation_without_variation_is_not_defined() -> None:
    for correlation in (pearson, spearman):
        assert correlation([], []) is None
        assert correlation([1.0], [2.0]) is None
        assert correlation([1.0, 1.0], [2.0, 3.0]) is None
        assert correlation([1.0, 2.0], [3.0, 3.0]) is None


def test_pearson_sees_lines_and_spearman_sees_order() -> None:
    values = [1.0, 2.0, 3.0, 10.0]
    assert pearson(values, [2 * value + 1 for value in values]) == pytest.approx(1)
    assert spearman(values, [np.exp(value) for value in values]) == pytest.approx(1)
    assert spearman(values, [-value for value in values]) == pytest.approx(-1)


def test_fits_without_a_positive_solution_give_zero() -> None:
    features = np.array([[1.0], [2.0]])
    assert non_negative_fit(features, np.array([-1.0, -2.0])).tolist() == [0.0]


def test_rank_correlation_of_order_ties_and_too_few_values() -> None:
    assert spearman([1, 2, 3], [10, 20, 90]) == pytest.approx(1)
    assert spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert spearman([1, 1, 2], [1, 2, 3]) == pytest.approx(0.8660254)
    assert spearman([1], [2]) is None
    assert spearman([1, 1], [2, 3]) is None
