"""Multinomial logistic regression on standardised features, its strength chosen on held-out rows.

scikit-learn's `LogisticRegression` (L2, lbfgs) does the fitting; its C divides the penalty, so a
smaller C regularises more strongly.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

MAX_ITERATIONS = 2000
# A spread below the noise of float32 would be blown up to one.
CONSTANT = 1e-6


@dataclass(frozen=True, eq=False)
class LogisticFit:
    """A fitted regression: logits are `((x - mean) / std) @ weight.T + bias`.

    `weight` is (K, F), `bias` (K,), `mean` and `std` (F,). `constant` counts features whose spread
    is at most 1e-6 of their largest magnitude: they have std 1 and weight 0.
    """

    weight: Floats
    bias: Floats
    mean: Floats
    std: Floats
    constant: int
    iterations: int
    converged: bool

    def logits(self, features: Floats) -> Floats:
        """Logits (n, K) of features (n, F)."""
        return np.asarray((features - self.mean) / self.std @ self.weight.T + self.bias)


@dataclass(frozen=True)
class Candidate:
    """One C and how it did on the held-out rows."""

    c: float
    correct: int
    accuracy: float
    iterations: int
    converged: bool


def held_out(labels: Ints, share: float, seed: int) -> NDArray[np.bool_]:
    """Which rows (n,) are held out: in each class `share` of them, rounded, seeded by class.

    Every class keeps at least one row on both sides, so each needs two or more. Classes are
    0..K-1.
    """
    out = np.zeros(len(labels), dtype=np.bool_)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        count = min(max(round(share * len(members)), 1), len(members) - 1)
        sequence = np.random.SeedSequence([seed, int(label)])
        order = np.random.Generator(np.random.PCG64(sequence)).permutation(len(members))
        out[members[order[:count]]] = True
    return out


def fit_logistic(features: Floats, labels: Ints, c: float) -> LogisticFit:
    """Fit features (n, F) to labels (n,) in 0..K-1, of which each occurs, K at least 2.

    Mean and standard deviation (over n, not n - 1) are those of these rows.
    """
    mean, std = features.mean(axis=0), features.std(axis=0)
    constant = std <= CONSTANT * np.abs(features).max(axis=0)
    std[constant] = 1.0
    scaled = (features - mean) / std
    scaled[:, constant] = 0.0
    model = LogisticRegression(C=c, max_iter=MAX_ITERATIONS)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(scaled, labels)
    unfinished = [w for w in caught if issubclass(w.category, ConvergenceWarning)]
    for other in (w for w in caught if w not in unfinished):
        warnings.warn_explicit(other.message, other.category, other.filename, other.lineno)
    weight, bias = np.asarray(model.coef_), np.asarray(model.intercept_)
    if len(weight) == 1:  # two classes have one row of differences; halves give the same softmax
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    weight[:, constant] = 0.0
    return LogisticFit(
        weight=weight,
        bias=bias,
        mean=mean,
        std=std,
        constant=int(constant.sum()),
        iterations=int(np.max(model.n_iter_)),
        converged=not unfinished,
    )


def candidates(
    features: Floats, labels: Ints, out: NDArray[np.bool_], grid: Sequence[float]
) -> tuple[Candidate, ...]:
    """Fit every C of `grid`, in rising order, on the rows that are not `out`; count on those."""
    tried = []
    for c in sorted(grid):
        fit = fit_logistic(features[~out], labels[~out], c)
        correct = int(np.sum(fit.logits(features[out]).argmax(axis=1) == labels[out]))
        share = correct / int(out.sum())
        tried.append(Candidate(c, correct, share, fit.iterations, fit.converged))
    return tuple(tried)


def best(tried: Sequence[Candidate]) -> Candidate:
    """The most accurate candidate; among equals the smallest C, which regularises most."""
    return min(tried, key=lambda one: (-one.correct, one.c))
