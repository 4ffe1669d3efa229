"""What a family of architectures is, and how the one that fits a module is found.

Other packages add families through the entry point group `probe.families`; see docs/plugins.md.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args

from torch import Tensor, nn

from probe import plugins
from probe.errors import AnatomyError, UsageError, did_you_mean
from probe.types import Anatomy, Identity, Preprocess

Library = Literal["timm", "hf", "import"]


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
    """Our own families by name: each module of this package that defines `FAMILY` adds itself."""
    package = importlib.import_module("probe.families")
    found = {}
    for info in pkgutil.iter_modules(package.__path__):
        family = getattr(importlib.import_module(f"probe.families.{info.name}"), "FAMILY", None)
        if family is not None:
            found[family.name] = family
    return found


@cache
def added_families() -> dict[str, Family]:
    """The families of other packages by name; one that is broken is told in a line and left out."""
    found = {}
    for name, plugin in _registry().plugins.items():
        try:
            found[name] = _checked(plugin)
        except UsageError as error:
            plugins.complain(str(error))
    return found


def packages(family: str, module: nn.Module) -> dict[str, str]:
    """The packages of plugins whose code runs in a model, with version and code; often none.

    They are those of the family and of every class of module in it.
    """
    plugin = None if family in families() else _registry().plugins.get(family)
    used = {type(part).__module__.partition(".")[0] for part in module.modules()}
    return plugins.identities(used) | ({} if plugin is None else plugin.identity)


def family_of(module: nn.Module, library: Library, forced: str | None = None) -> Family:
    """The family that claims `module`, or the one named by `forced`.

    Families of other packages are asked only about what none of ours claims.

    Raises:
        UsageError: if `forced` is no family.
        AnatomyError: if none, or more than one, claims it.
    """
    if forced is not None:
        return _named(forced)
    fits = [f for f in families().values() if f.library == library and f.claims(module)]
    fits = fits or [f for f in added_families().values() if _claimed(f, module, library)]
    if len(fits) == 1:
        return fits[0]
    kind = f"{type(module).__module__}.{type(module).__name__}"
    if not fits:
        names = ", ".join(sorted([*families(), *added_families()]))
        raise AnatomyError(
            f"no family reads the architecture {kind}; it may have no token grid "
            f"(of convolutional networks, ResNet and ConvNeXt are baselines). Families: {names}"
        )
    names = ", ".join(sorted(f.name for f in fits))
    raise AnatomyError(f"{kind} fits more than one family ({names}); name one with `family:`")


def _named(name: str) -> Family:
    if name in families():
        return families()[name]
    plugin = _registry().find(name)
    if plugin is None:
        near = did_you_mean(name, [*families(), *_registry().plugins])
        raise UsageError(f"unknown family '{name}'.{near}")
    return _checked(plugin)


def _claimed(family: Family, module: nn.Module, library: Library) -> bool:
    """Whether another package's family claims `module`; one that fails is told in a line."""
    try:
        return family.library == library and bool(family.claims(module))
    except Exception as error:  # it must not stand in the way of other models
        plugin = _registry().plugins[family.name]
        plugins.complain(f"{plugin} is left out: its claims() raised {plugins.first_line(error)}")
        return False


def _checked(plugin: plugins.Plugin) -> Family:
    family = plugin.load(Family)
    if family.library not in get_args(Library):
        raise UsageError(
            f"{plugin} cannot be used: its library is '{family.library}', not "
            f"{' or '.join(get_args(Library))}; update or remove the package"
        )
    return family


def _registry() -> plugins.Registry:
    return plugins.registry(plugins.FAMILIES, frozenset(families()))
