"""Gaussian blurs, separable, with mirrored borders (the outermost pixel is not repeated)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def truncated_taps(sigma: float, kernel: int) -> NDArray[np.float64]:
    """The `kernel` taps of torchvision's `GaussianBlur`: a Gaussian cut off, then made to sum to 1.

    With sigma 2.5 and 5 taps its effective sigma is only 1.3345.
    """
    return _taps(sigma, kernel // 2)


def full_taps(sigma: float) -> NDArray[np.float64]:
    """The taps of a Gaussian out to a radius of ceil(4 sigma), normalised to sum to 1."""
    return _taps(sigma, math.ceil(4 * sigma))


def effective_sigma(taps: NDArray[np.float64]) -> float:
    """Root of the second moment of a symmetric kernel, in pixels."""
    radius = len(taps) // 2
    return math.sqrt(float(taps @ np.arange(-radius, radius + 1) ** 2))


def gaussian_blur(
    image: NDArray[np.uint8], _: np.random.Generator, *, sigma: float, kernel: int
) -> NDArray[np.uint8]:
    """What torchvision's `GaussianBlur(kernel, sigma)` does, images smaller than the kernel too."""
    return _convolve(image, truncated_taps(sigma, kernel))


def true_gaussian_blur(
    image: NDArray[np.uint8], _: np.random.Generator, *, sigma: float
) -> NDArray[np.uint8]:
    """A Gaussian blur whose effective sigma is `sigma`, to 0.2 % from sigma 1 on."""
    return _convolve(image, full_taps(sigma))


def _taps(sigma: float, radius: int) -> NDArray[np.float64]:
    taps = np.exp(-0.5 * (np.arange(-radius, radius + 1) / sigma) ** 2)
    return taps / taps.sum()


def _convolve(image: NDArray[np.uint8], taps: NDArray[np.float64]) -> NDArray[np.uint8]:
    """uint8 (H, W, C), along H and then W, in float32, rounded once at the end.

    Elementwise steps in a fixed order, so that a pixel does not depend on what is beside the image
    in memory or on the number of threads, as it can with a library's convolution.
    """
    blurred = image.astype(np.float32)
    for axis in (0, 1):
        blurred = _along(blurred, axis, taps.astype(np.float32))
    return np.rint(blurred, out=blurred).astype(np.uint8)


def _along(image: NDArray[np.float32], axis: int, taps: NDArray[np.float32]) -> NDArray[np.float32]:
    size, radius = image.shape[axis], len(taps) // 2
    padded = image.take(_mirrored(size, radius), axis=axis)

    def shifted(by: int) -> NDArray[np.float32]:
        window = slice(radius + by, radius + by + size)
        return padded[window] if axis == 0 else padded[:, window]

    total = shifted(0) * taps[radius]
    pair = np.empty_like(total)
    for by in range(1, radius + 1):
        np.add(shifted(-by), shifted(by), out=pair)
        pair *= taps[radius + by]
        total += pair
    return total


def _mirrored(size: int, radius: int) -> NDArray[np.int64]:
    """Indices -radius .. size - 1 + radius folded into 0 .. size - 1, as often as it takes."""
    period = max(1, 2 * size - 2)
    folded = np.arange(-radius, size + radius) % period
    return np.minimum(folded, period - folded) if size > 1 else folded
