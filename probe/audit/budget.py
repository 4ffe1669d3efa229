"""What a model costs by counting: parameters, tokens, multiply-adds, activations kept."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from probe.types import LoadedModel

LEVEL = "analytic"
CONVENTION = (
    "one multiply-add counts once; matrix products and convolutions of one forward pass of one "
    "image, attention products included; norms, activations, softmax and additions are not"
)
ASSUMES = (
    "counted from the operations that the library runs at this image size, not from a formula; "
    "activations are what autograd keeps for a backward pass of one image in this dtype, each "
    "storage once, parameters left out, attention unfused"
)


def budget(model: LoadedModel) -> dict[str, Any]:
    """The `budget` of a card, ready for JSON.

    Returns:
        `params`; `image_tokens` on the first grid and `prefix_tokens`; `macs` with its
        `convention`; `activation_bytes`; `reason` where a count is None.
    """
    multiply_adds, reason = macs(model)
    activations, why = activation_bytes(model)
    first = model.anatomy.attn_in[0]
    return {
        "params": sum(parameter.numel() for parameter in model.module.parameters()),
        "image_tokens": model.anatomy.patches.grid.tokens,
        "prefix_tokens": first.prefix,
        "macs": multiply_adds,
        "convention": CONVENTION,
        "activation_bytes": activations,
        "dtype": str(next(model.module.parameters()).dtype).removeprefix("torch."),
        "reason": "; ".join(text for text in (reason, why) if text) or None,
    }


def macs(model: LoadedModel) -> tuple[int | None, str | None]:
    """Multiply-adds of one image, or why they cannot be counted."""
    counter = FlopCounterMode(display=False)
    try:
        # The fused kernel counts as nothing on a CPU.
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
            model.forward(_blank(model))
    except RuntimeError as error:
        return None, f"not counted: {str(error).splitlines()[0]}"
    return counter.get_total_flops() // 2, None


def activation_bytes(model: LoadedModel) -> tuple[int | None, str | None]:
    """Bytes that training keeps of one image between forward and backward, or why not counted."""
    parameters = list(model.module.parameters())
    own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
    own |= {buffer.untyped_storage().data_ptr() for buffer in model.module.buffers()}
    # A weak reference keeps a storage's address from being used again, not its memory.
    kept: dict[int, tuple[StorageWeakRef, int]] = {}
    asked = [parameter.requires_grad for parameter in parameters]

    def keep(tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            reference = StorageWeakRef(storage)
            kept.setdefault(reference.cdata, (reference, storage.nbytes()))

    try:
        for parameter in parameters:
            parameter.requires_grad_(True)
        with (
            torch.enable_grad(),
            sdpa_kernel(SDPBackend.MATH),
            torch.autograd.graph.saved_tensors_hooks(keep, _never),
        ):
            model.forward(_blank(model))
    except RuntimeError as error:
        return None, f"activations not counted: {str(error).splitlines()[0]}"
    finally:
        for parameter, before in zip(parameters, asked, strict=True):
            parameter.requires_grad_(before)
    return sum(size for _, size in kept.values()), None


def _never(kept: None) -> Tensor:
    raise RuntimeError("a counted forward pass has no backward pass")


def _blank(model: LoadedModel) -> Tensor:
    parameter = next(model.module.parameters())
    shape = (1, 3, *model.anatomy.image_size)
    return torch.zeros(shape, dtype=parameter.dtype, device=parameter.device)
