"""What a family of architectures is, and how the one that fits a module is found."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from torch import Tensor, nn

from probe.errors import AnatomyError, UsageError, did_you_mean
from probe.types import Anatomy, Identity, Preprocess

Library = Literal["timm", "hf"]


@dataclass(frozen=True)
class Family:
    """One family of architectures: how to recognise it and where its tokens and positions are.

    `claims(module)` looks at class and structure, never at a model's name. `anatomy(module,
    (height, width))` declares sites for that image size, and raises AnatomyError for a member it
    cannot read. `predict(module)` returns the function from raw output to logits (B, classes), or
    None when the module has no head.
    """

    name: str
    library: Library
    claims: Callable[[nn.Module], bool]
    anatomy: Callable[[nn.Module, tuple[int, int]], Anatomy]
    predict: Callable[[nn.Module], Callable[[Any], Tensor] | None]


@dataclass(frozen=True)
class RawModel:
    """A module as its library loads it, before a family has looked at it.

    `forward(images)` calls the module as the library wants it called at `image_size` (height,
    width). `classes` is the width of the head, None without one.
    """

    module: nn.Module
    library: Library
    identity: Identity
    image_size: tuple[int, int]
    preprocess: Preprocess | None
    forward: Callable[[Tensor], Any]
    classes: int | None
    notes: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None


@cache
def families() -> dict[str, Family]:
    """Every family by name: each module of this package that defines `FAMILY` adds itself."""
    package = importlib.import_module("probe.families")
    found = {}
    for info in pkgutil.iter_modules(package.__path__):
        family = getattr(importlib.import_module(f"probe.families.{info.name}"), "FAMILY", None)
        if family is not None:
            found[family.name] = family
    return found


def family_of(module: nn.Module, library: Library, forced: str | None = None) -> Family:
    """The family that claims `module`, or the one named by `forced`.

    Raises:
        UsageError: if `forced` is no family.
        AnatomyError: if none, or more than one, claims it.
    """
    known = families()
    if forced is not None:
        if forced not in known:
            raise UsageError(f"unknown family '{forced}'.{did_you_mean(forced, known)}")
        return known[forced]
    fits = [f for f in known.values() if f.library == library and f.claims(module)]
    if len(fits) == 1:
        return fits[0]
    kind = f"{type(module).__module__}.{type(module).__name__}"
    if not fits:
        names = ", ".join(sorted(f.name for f in known.values()))
        raise AnatomyError(
            f"no family reads the architecture {kind}; it may have no token grid "
            f"(of convolutional networks, ResNet and ConvNeXt are baselines). Families: {names}"
        )
    names = ", ".join(sorted(f.name for f in fits))
    raise AnatomyError(f"{kind} fits more than one family ({names}); name one with `family:`")
