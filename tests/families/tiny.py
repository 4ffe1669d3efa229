"""The tiny models of all families, how tests run them, and a watch over what is left in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from probe.coverage.redraw import redraw
from probe.hooks import observe
from probe.interventions import rpi_permutations
from probe.types import Anatomy, LoadedModel, Permutation, TokenSite
from tests.families import tiny_hf, tiny_timm

IMAGES = 3
Makers = dict[str, Callable[[], LoadedModel]]
MAKERS: Makers = tiny_timm.tiny_models() | tiny_hf.tiny_models()
# The contract holds for more families than the audit and readouts are tried on.
ALL_MAKERS: Makers = MAKERS | tiny_hf.listed_models()
HOOKS = [key for key in vars(nn.Module()) if key.endswith("_hooks") or "_hooks_" in key]


@dataclass
class Watch:
    """Everything of a module that an intervention could leave changed."""

    module: nn.Module
    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Tensor] = field(default_factory=dict)
    hooks: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tensors, self.hooks = self._tensors(), self._hooks()
        self.values = {name: tensor.clone() for name, tensor in self.tensors.items()}

    def changes(self) -> list[str]:
        """Names of tensors that are another object or hold another value, and of modules with
        other hooks than before.
        """
        now, hooks = self._tensors(), self._hooks()
        changed = sorted(now.keys() ^ self.tensors.keys())
        for name in now.keys() & self.tensors.keys():
            same = now[name] is self.tensors[name] and torch.equal(now[name], self.values[name])
            changed += [] if same else [name]
        return changed + [name for name in hooks if hooks[name] != self.hooks.get(name)]

    def _tensors(self) -> dict[str, Tensor]:
        parameters = dict(self.module.named_parameters(remove_duplicate=False))
        return parameters | dict(self.module.named_buffers(remove_duplicate=False))

    def _hooks(self) -> dict[str, Any]:
        return {
            name or "model": {key: dict(vars(part)[key]) for key in HOOKS}
            for name, part in self.module.named_modules()
        }


@cache
def anatomy_of(name: str) -> Anatomy:
    """What the family declares about a tiny model."""
    return ALL_MAKERS[name]().anatomy


def named(which: Callable[[Anatomy], bool], makers: Makers = MAKERS) -> list[str]:
    """The tiny models whose anatomy is such."""
    return [name for name in makers if which(anatomy_of(name))]


def staged(anatomy: Anatomy) -> bool:
    """Whether the grid changes between blocks."""
    return len({site.grid for site in anatomy.block_out}) > 1


def windowed(anatomy: Anatomy) -> bool:
    """Whether some attention compares the tokens of windows."""
    return any(site.window is not None for site in anatomy.attention)


def attending(anatomy: Anatomy) -> bool:
    """Whether the family says which tokens attend to which."""
    return bool(anatomy.attention)


def silent(anatomy: Anatomy) -> bool:
    """Whether every positional signal can be taken away."""
    return all(site.rescale is not None for site in anatomy.positions)


def plain(anatomy: Anatomy) -> bool:
    """Whether every block takes and gives one grid of tokens in row-major order."""
    return all(
        taken.grid == given.grid and not (taken.arrangement or given.arrangement or given.element)
        for taken, given in zip(anatomy.attn_in, anatomy.block_out, strict=True)
    )


def fresh(name: str) -> LoadedModel:
    """A new copy of a tiny model, its constant parameters redrawn."""
    model = ALL_MAKERS[name]()
    redraw(model.module)
    return model


def images_for(model: LoadedModel, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(IMAGES, 3, *model.anatomy.image_size, generator=generator).to(dtype)


def tensors(output: Any) -> list[Tensor]:
    """Every tensor of a raw output, in order."""
    if isinstance(output, Tensor):
        return [output]
    parts = list(output.values()) if isinstance(output, Mapping) else output
    return [t for part in parts for t in tensors(part)] if isinstance(parts, list | tuple) else []


def run(model: LoadedModel, images: Tensor | None = None) -> list[Tensor]:
    with torch.no_grad():
        found = tensors(model.forward(images_for(model) if images is None else images))
    assert found
    return found


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def read(model: LoadedModel, sites: Any, images: Tensor | None = None) -> dict[TokenSite, Tensor]:
    """The patch tokens at each site, by site, in the order in which the sites were reached."""
    found: dict[TokenSite, Tensor] = {}

    def keep(site: TokenSite, tokens: Tensor) -> None:
        assert site not in found, "a site was reached twice"
        found[site] = tokens.detach().clone()

    with observe(model.module, sites, keep):
        run(model, images)
    return found


def all_sites(model: LoadedModel) -> tuple[TokenSite, ...]:
    return model.anatomy.attn_in + model.anatomy.block_out


def permutations(model: LoadedModel, mode: Any = "image") -> Tensor:
    grid = model.anatomy.patches.grid
    return rpi_permutations(grid, range(IMAGES), Permutation(mode, seed=5))
