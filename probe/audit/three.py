"""The smallest case: three tokens, one head, all six permutations, by explicit arithmetic."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTH = 4


def explicit_attention(
    tokens: NDArray[np.float64], weights: NDArray[np.float64], bias: NDArray[np.float64]
) -> NDArray[np.float64]:
    """One head: softmax(x Q (x K)^T / sqrt(d) + bias) x V, float64.

    Args:
        tokens: (n, d).
        weights: (3, d, d): Q, K, V.
        bias: (n, n), added to the scores.
    """
    query, key, value = (tokens @ matrix for matrix in weights)
    scores = query @ key.T / np.sqrt(tokens.shape[1]) + bias
    weight = np.exp(scores - scores.max(axis=1, keepdims=True))
    found: NDArray[np.float64] = weight / weight.sum(axis=1, keepdims=True) @ value
    return found


def three_tokens(seed: int = 0) -> dict[str, Any]:
    """Largest relative defect over all six permutations of three tokens.

    Returns:
        `without_position`; with a table added to the tokens, `with_table`; with a bias in the
        scores, `with_bias`; and `joint`, where table and bias are permuted with the tokens.
    """
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 3])))
    tokens, table = generator.standard_normal((2, 3, WIDTH))
    weights = generator.standard_normal((3, WIDTH, WIDTH))
    bias, nothing = generator.standard_normal((3, 3)), np.zeros((3, 3))
    worst = dict.fromkeys(("without_position", "with_table", "with_bias", "joint"), 0.0)
    orders = [list(order) for order in itertools.permutations(range(3))]
    for order in orders:
        moved = bias[order][:, order]
        pairs = {
            "without_position": (tokens[order], nothing, tokens, nothing),
            "with_table": (tokens[order] + table, nothing, tokens + table, nothing),
            "with_bias": (tokens[order], bias, tokens, bias),
            "joint": ((tokens + table)[order], moved, tokens + table, bias),
        }
        for name, (x, own, plain, kept) in pairs.items():
            after = explicit_attention(x, weights, own)
            before = explicit_attention(plain, weights, kept)[order]
            found = float(np.linalg.norm(after - before) / np.linalg.norm(before))
            worst[name] = max(worst[name], found)
    return {"permutations": len(orders), **worst}
