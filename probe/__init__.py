"""`probe`: does a vision transformer organise its tokens by where they sit, or by what they show?

    import probe
    model = probe.load("deit_small")
    curves = probe.ssdc(model, "photos")

Nothing heavy is imported before one of these names is used.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "load": "probe.api",
    "ssdc": "probe.api",
    "permute_patches": "probe.interventions",
    "scale_positions": "probe.interventions",
    "rpi_permutations": "probe.interventions",
    "Permutation": "probe.types",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'probe' has no attribute '{name}'")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
