"""timm models inside transformers' wrapper: the families of timm read them, names get a prefix."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from probe.families.base import Family, family_of
from probe.families.hf_sites import dotted, has, only, predict_logits
from probe.types import Anatomy, PositionSite
from probe.wiring import CarryOutput, CarryTensors, SwapTensors

WRAPPERS = ("TimmWrapperModel", "TimmWrapperForImageClassification")


def claims(model: nn.Module) -> bool:
    """Whether the model is a wrapped timm model."""
    return has(model, *WRAPPERS)


def anatomy(model: nn.Module, image_size: tuple[int, int]) -> Anatomy:
    """What timm's own family declares, at `image_size` (height, width).

    Raises:
        AnatomyError: if no family of timm reads the wrapped model.
    """
    name, wrapper = only(model, *WRAPPERS)
    inside = dotted(name, "timm_model")
    own = family_of(wrapper.timm_model, "timm").anatomy(wrapper.timm_model, image_size)

    def named(site: Any) -> Any:
        return replace(site, module=dotted(inside, site.module))

    return replace(
        own,
        patches=named(own.patches),
        attn_in=tuple(named(site) for site in own.attn_in),
        block_out=tuple(named(site) for site in own.block_out),
        positions=tuple(_position(inside, site) for site in own.positions),
        features=None if own.features is None else named(own.features),
        attention=tuple(named(site) for site in own.attention),
    )


def _position(inside: str, site: PositionSite) -> PositionSite:
    """The signal, with rules that act on the wrapped model and name tensors of the wrapper."""
    rescale, carry = site.rescale, site.carry

    def prefixed(tensors: Any) -> Any:
        def found(model: nn.Module, value: Any) -> dict[str, Tensor]:
            new = tensors(model.get_submodule(inside), value)
            return {dotted(inside, name): tensor for name, tensor in new.items()}

        return found

    if isinstance(rescale, SwapTensors):
        caches = tuple(dotted(inside, name) for name in rescale.caches)
        rescale = SwapTensors(prefixed(rescale.tensors), caches)
    if isinstance(carry, CarryTensors):
        carry = CarryTensors(prefixed(carry.tensors))
    elif isinstance(carry, CarryOutput):
        carry = CarryOutput(dotted(inside, carry.module), carry.edit)
    return replace(site, where=dotted(inside, site.where), rescale=rescale, carry=carry)


FAMILY = Family("hf_timm", "hf", claims, anatomy, predict_logits)
