"""The fifteen corruptions of ImageNet-C, through the package `imagecorruptions-imaug`.

Hendrycks and Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations (ICLR 2019). The package rewrites a few of them without ImageMagick (motion blur,
snow), so its images resemble the published data set but do not equal it. Like the package's own
`corrupt`, results are truncated to 8 bits and images have at least 32 pixels a side.
"""

from __future__ import annotations

import importlib
import importlib.metadata
from threading import Lock
from types import ModuleType

import numpy as np
from numpy.random import mtrand
from numpy.typing import NDArray
from PIL import Image

from probe.errors import UsageError

NAMES = (
    *("gaussian_noise", "shot_noise", "impulse_noise"),
    *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness"),
    *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
# These two draw from a generator of their own; the others that draw use NumPy's global one.
OWN_SEED = ("impulse_noise", "glass_blur")
PACKAGE = "imagecorruptions-imaug"
SMALLEST = 32
_GLOBAL = Lock()


def imagenet_c(
    image: NDArray[np.uint8], generator: np.random.Generator, *, name: str, severity: int
) -> NDArray[np.uint8]:
    """Apply one of `NAMES` with random numbers from `generator`; NumPy's global state is put back.

    Calls wait for each other, since the package draws from that global state. Code elsewhere that
    draws from it in another thread at the same time would disturb the result.

    Raises:
        UsageError: if the package is not installed.
        ValueError: if the image is too small, or the package gives something undefined.
    """
    if min(image.shape[:2]) < SMALLEST:
        raise ValueError(f"ImageNet-C needs at least {SMALLEST} pixels a side")
    function = getattr(load(), name)
    given = {"seed": int(generator.integers(2**32))} if name in OWN_SEED else {}
    with _GLOBAL:
        before = mtrand.get_bit_generator()
        mtrand.set_bit_generator(generator.bit_generator)
        try:
            result = np.asarray(function(Image.fromarray(image), severity, **given))
        finally:
            mtrand.set_bit_generator(before)
    if not np.isfinite(result).all():
        raise ValueError("the result is not finite")
    return result.astype(np.uint8)


def load() -> ModuleType:
    """The package's module of functions.

    Raises:
        UsageError: if it, or what it needs, is missing; the line names the extra.
    """
    try:
        # The package that it was forked from is imported by the same name, and takes no seeds.
        importlib.metadata.version(PACKAGE)
        return importlib.import_module("imagecorruptions.corruptions")
    except importlib.metadata.PackageNotFoundError as error:
        reason = f"{PACKAGE} is not installed"
        cause: Exception = error
    except ImportError as error:
        reason, cause = f"{PACKAGE} cannot be imported, {error}", error
    raise UsageError(
        "the ImageNet-C corruptions need an optional extra: pip install 'vit-probe[imagenet-c]' "
        f"({reason})"
    ) from cause
