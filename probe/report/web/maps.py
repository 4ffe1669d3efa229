"""Similarity maps inside the page: one text, cut per model, coarser where there are many."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

from probe.errors import StoreError
from probe.report.format import plain

BUDGET = 5_000_000  # characters of base64 for all maps; the page stays below 8 MB with the rest
KINDS = ("clean", "rpi")
STEPS = bytes((value * 15 + 127) // 255 for value in range(256))  # 8 bits to 4


def packed_maps(models: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], str]:
    """What the page needs to find every map, and the base64 text that holds them.

    A model's maps are one stretch of the text, `start` to `end` in characters, decoded when it is
    shown: layer after layer, the three tokens' maps clean, then under RPI, row-major. One value is
    8 bits, or 4 (the high half of a byte first, each map on whole bytes) where 8 exceed `BUDGET`;
    beyond that, layers are left out evenly and the last is kept. `note` says what was lost, or is
    empty.

    Raises:
        StoreError: a map cannot be decoded or does not have its grid's size.
    """
    read = [[_decoded(model["model"], layer) for layer in model["maps"]] for model in models]
    for bits, step in _thrift(max((len(layers) for layers in read), default=0)):
        if _characters(read, bits, step) <= BUDGET:
            break
    found, texts, at = [], [], 0
    for layers in read:
        kept = _kept(layers, step)
        raw = b"".join(_coarse(data, bits) for _, maps in kept for data in maps)
        texts.append(base64.b64encode(raw).decode("ascii"))
        entries = [
            {"layer": layer["layer"], "grid": layer["grid"], "tokens": layer["tokens"]}
            for layer, _ in kept
        ]
        found.append({"start": at, "end": at + len(texts[-1]), "layers": entries})
        at += len(texts[-1])
    return {"bits": bits, "note": _note(bits, step), "models": found}, "".join(texts)


def _decoded(model: str, layer: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[bytes]]:
    maps, (rows, columns) = [], layer["grid"]
    for text in (text for kind in KINDS for text in layer[kind]):
        try:
            data = base64.b64decode(text, validate=True)
        except binascii.Error:
            data = b""
        if len(data) != rows * columns:
            raise StoreError(
                f"a similarity map of '{plain(model)}', layer {layer['layer']}, does not hold "
                f"{rows} x {columns} values; remove that model's records and measure it again"
            )
        maps.append(data)
    return layer, maps


def _thrift(depth: int) -> list[tuple[int, int]]:
    """(bits, every how many layers), from what loses nothing to what loses most."""
    return [(8, 1), *((4, step) for step in range(1, max(depth, 1) + 1))]


def _kept(layers: Sequence[Any], step: int) -> Sequence[Any]:
    return layers[(len(layers) - 1) % step :: step] if layers else layers


def _characters(read: Sequence[Sequence[tuple[Any, list[bytes]]]], bits: int, step: int) -> int:
    sizes = [sum(len(d) for _, maps in _kept(layers, step) for d in maps) for layers in read]
    return sum(-(-size * bits // 24) * 4 for size in sizes)


def _coarse(data: bytes, bits: int) -> bytes:
    if bits == 8:
        return data
    halves = data.translate(STEPS)
    return bytes(
        high << 4 | low for high, low in zip(halves[::2], halves[1::2] + b"\0", strict=False)
    )


def _note(bits: int, step: int) -> str:
    if bits == 8:
        return ""
    told = "To keep this page small, maps are shown in 16 steps of cosine"
    return f"{told}, one layer in {step}." if step > 1 else f"{told}."
