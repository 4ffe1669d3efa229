"""The regression equals scikit-learn's own pipeline, and what is held out is stratified."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from probe.numerics import logistic
from probe.numerics.logistic import Candidate, best, candidates, fit_logistic, held_out


def clouds(classes: int, each: int = 40, spread: float = 1.5) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping clouds of points in 6 dimensions of unequal scale and place."""
    rng = np.random.default_rng(classes)
    centres = rng.normal(size=(classes, 6))
    labels = np.repeat(np.arange(classes), each)
    points = centres[labels] + spread * rng.normal(size=(len(labels), 6))
    return points * [1, 10, 0.1, 3, 1, 1] + [5, -3, 0, 0, 0, 100], labels


def pipeline(c: float) -> object:
    return make_pipeline(StandardScaler(), LogisticRegression(C=c, max_iter=2000))


@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("c", [1e-3, 1.0, 100.0])
def test_equals_a_pipeline_of_scikit_learn(classes: int, c: float) -> None:
    points, labels = clouds(classes)
    by_hand = pipeline(c).fit(points, labels)  # type: ignore[attr-defined]
    fit = fit_logistic(points, labels, c)
    assert fit.weight.shape == (classes, 6)
    assert (fit.constant, fit.converged) == (0, True)
    logits = fit.logits(points)
    soft = np.exp(logits - logits.max(axis=1, keepdims=True))
    soft /= soft.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(soft, by_hand.predict_proba(points), atol=1e-6)
    if classes > 2:
        np.testing.assert_allclose(logits, by_hand.decision_function(points), atol=1e-6)
    np.testing.assert_array_equal(logits.argmax(axis=1), by_hand.predict(points))


def test_constant_features_are_counted_and_weigh_nothing() -> None:
    points, labels = clouds(3)
    wider = np.insert(points, 2, 0.3, axis=1)
    noise = np.random.default_rng(0).normal(size=len(labels))
    wider[:, 2] += 1e-9 * noise
    wider = np.insert(wider, 5, 0.0, axis=1)
    fit, plain = fit_logistic(wider, labels, 1.0), fit_logistic(points, labels, 1.0)
    assert fit.constant == 2
    assert fit.std[[2, 5]].tolist() == [1.0, 1.0]
    assert not fit.weight[:, [2, 5]].any()
    np.testing.assert_allclose(np.delete(fit.weight, [2, 5], axis=1), plain.weight, atol=1e-9)


def test_a_fit_that_did_not_converge_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    points, labels = clouds(3)
    monkeypatch.setattr(logistic, "MAX_ITERATIONS", 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = fit_logistic(points, labels, 100.0)
    assert (fit.converged, fit.iterations) == (False, 2)


def test_other_warnings_are_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    points, labels = clouds(2)
    original = LogisticRegression.fit

    def noisy(self: LogisticRegression, *arguments: object) -> LogisticRegression:
        warnings.warn("something else", FutureWarning, stacklevel=1)
        return original(self, *arguments)

    monkeypatch.setattr(LogisticRegression, "fit", noisy)
    with pytest.warns(FutureWarning, match="something else"):
        assert fit_logistic(points, labels, 1.0).converged


def test_the_held_out_part_is_stratified_and_seeded() -> None:
    labels = np.repeat([0, 1, 2, 3], [20, 10, 2, 3])
    rng = np.random.default_rng(5)
    rng.shuffle(labels)
    out = held_out(labels, 0.2, seed=1)
    assert [int(out[labels == k].sum()) for k in range(4)] == [4, 2, 1, 1]
    np.testing.assert_array_equal(out, held_out(labels, 0.2, seed=1))
    assert (out != held_out(labels, 0.2, seed=2)).any()
    nearly_all = held_out(labels, 0.99, seed=1)
    assert [int((~nearly_all)[labels == k].sum()) for k in range(4)] == [1, 1, 1, 1]


def test_candidates_see_nothing_of_the_held_out_rows() -> None:
    points, labels = clouds(3)
    out = held_out(labels, 0.25, seed=0)
    tried = candidates(points, labels, out, (1.0, 1e-3, 10.0))
    assert [one.c for one in tried] == [1e-3, 1.0, 10.0]
    for one in tried:
        by_hand = pipeline(one.c).fit(points[~out], labels[~out])  # type: ignore[attr-defined]
        assert one.accuracy == pytest.approx(by_hand.score(points[out], labels[out]), abs=1e-12)
        assert one.correct == round(one.accuracy * out.sum())


def test_ties_go_to_the_stronger_penalty() -> None:
    def one(c: float, correct: int) -> Candidate:
        return Candidate(c, correct, correct / 10, 1, True)

    assert best([one(0.1, 7), one(1, 8), one(10, 8), one(100, 6)]).c == 1
    assert best([one(100, 8), one(0.1, 8)]).c == 0.1
