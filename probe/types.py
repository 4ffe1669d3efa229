"""The nouns of the project: frozen dataclasses without behaviour of their own.

Axis names: B images, N patch tokens of a grid (rows * cols, row-major), C channels, L layers, G
jackknife groups, K permutation draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from probe import wiring

if TYPE_CHECKING:
    import torch

Layout = Literal["NLC", "NHWC", "NCHW"]
Point = Literal["attn_in", "block_out"]
Side = Literal["output", "input"]
PositionKind = Literal[
    "absolute", "sinusoidal", "relative_bias", "rotary", "convolutional", "gated", "mixing"
]
DType = Literal["float32", "bfloat16", "float16", "float64"]
PermutationMode = Literal["image", "shared", "batch"]
Metric = Literal["l1", "l2"]
Average = Literal["similarity", "image"]


@dataclass(frozen=True, order=True)
class Grid:
    """A token grid, counted in tokens."""

    rows: int
    cols: int

    @property
    def tokens(self) -> int:
        """Number of patch tokens, rows * cols."""
        return self.rows * self.cols


@dataclass(frozen=True)
class PatchSite:
    """The module whose output is the patch projection, where RPI shuffles.

    `module` is a dotted name; of a tuple that it returns, the first tensor holds the tokens, which
    `arrangement` brings into `layout`. `refusal` says why RPI does not apply.
    """

    module: str
    grid: Grid
    prefix: int
    layout: Layout
    arrangement: wiring.Arrangement | None = None
    refusal: str | None = None


@dataclass(frozen=True)
class TokenSite:
    """Where the tokens of one layer are read.

    `module` is a dotted name; `side` says whether its output is read, or, for post-norm designs,
    its first input; `element` is which tensor of several. `prefix` tokens stand in front of the
    grid. An `arrangement` brings what is read into `layout`.
    """

    layer: int
    point: Point
    module: str
    grid: Grid
    prefix: int
    layout: Layout
    side: Side = "output"
    arrangement: wiring.Arrangement | None = None
    element: int = 0


@dataclass(frozen=True)
class PositionSite:
    """One positional signal; `gated`: attention by position alone; `mixing`: weights per index.

    `where` is the dotted name of the table, buffer or module; `prefix` counts a table's rows for
    prefix tokens. `rescale` is how alpha reaches the signal, None where it cannot; `max_alpha`
    bounds alpha where the signal saturates. `carry` moves a rotation or a bias along with permuted
    tokens, None where every run makes it anew. `grid` (of a bias: window) is what a table was made
    for, `layout` its own; `resampling` says how other sizes are reached.
    """

    kind: PositionKind
    where: str
    prefix: int = 0
    rescale: wiring.SwapTensors | wiring.EditOutput | None = None
    max_alpha: float = 2.0
    carry: wiring.CarryTensors | wiring.CarryOutput | None = None
    grid: Grid | None = None
    resampling: str = ""
    layout: Layout = "NLC"


@dataclass(frozen=True)
class FeatureSite:
    """The last tokens before the head; `class_index` counts the class token in their prefix."""

    module: str
    grid: Grid
    prefix: int
    layout: Layout
    class_index: int | None


@dataclass(frozen=True)
class Anatomy:
    """What a family declares about one loaded model at one image size.

    `attn_in`, `block_out` and `attention` hold one site per layer, in order of execution across
    stages; `image_size` is (height, width) in pixels.
    """

    image_size: tuple[int, int]
    patches: PatchSite
    attn_in: tuple[TokenSite, ...]
    block_out: tuple[TokenSite, ...]
    positions: tuple[PositionSite, ...]
    features: FeatureSite | None = None
    attention: tuple[wiring.AttentionSite, ...] = ()
    merges: tuple[wiring.Merge, ...] = ()

    def sites(self, point: Point) -> tuple[TokenSite, ...]:
        """The sites of every layer at `point`."""
        return self.attn_in if point == "attn_in" else self.block_out


@dataclass(frozen=True)
class Preprocess:
    """From a decoded RGB image to the model's input.

    `resize` is ("short", pixels), ("squash", (height, width)) or None; `crop` is (height, width),
    centred, or None. `mean` and `std` are per channel, of values in 0..1; `source` says whose.
    """

    size: tuple[int, int]
    resize: tuple[Literal["short"], int] | tuple[Literal["squash"], tuple[int, int]] | None
    crop: tuple[int, int] | None
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    source: str


@dataclass(frozen=True)
class ModelSpec:
    """Which model is meant, before anything is loaded.

    `source` is `timm:NAME`, `hf:ID`, `file:PATH`, `package:NAME`, or `import:MODULE:NAME` with
    `weights` (a file) and the `folder` where MODULE is looked up first. `options` go to the
    constructor. `family` forces a family; an inline `anatomy` replaces it. `preprocess` is
    imagenet, half, a file, its fields, or None for the checkpoint's own.
    """

    name: str
    source: str
    arch: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    revision: str | None = None
    family: str | None = None
    anatomy: Mapping[str, Any] | None = None
    weights: str | None = None
    folder: str | None = None
    preprocess: str | Mapping[str, Any] | None = None
    data: str | None = None
    readout: str | None = None
    labels: str | None = None
    group: str | None = None
    position: str | None = None
    tags: tuple[str, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Identity:
    """Which weights (`sha256:...` of the files, or `random:SEED`), and what they were put into.

    `resolved` is the full id; `revision` the hub commit, None for local files; `configuration` a
    hash of the architecture, since equal weights fit more than one.
    """

    resolved: str
    revision: str | None
    weights: str
    configuration: str = ""


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, in eval mode, with what its family declares.

    `forward(images)` runs the unmodified module on float images (B, 3, height, width) and returns
    its raw output; `predict(output)` turns that output into logits (B, classes), and is None for a
    model without a head. `preprocess` is None when the checkpoint carries none and none was named.
    `class_names` are the head's own, where the checkpoint states them.
    """

    spec: ModelSpec
    identity: Identity
    family: str
    module: torch.nn.Module
    anatomy: Anatomy
    preprocess: Preprocess | None
    forward: Callable[[torch.Tensor], Any]
    predict: Callable[[Any], torch.Tensor] | None
    classes: int | None
    notes: tuple[str, ...] = ()
    class_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Permutation:
    """The RPI part of a condition."""

    mode: PermutationMode
    seed: int
    draw: int = 0


@dataclass(frozen=True)
class Condition:
    """One setting of (permutation, alpha, corruption); the clean condition is the empty one.

    `corruption` is a canonical text; `signal` limits alpha to one kind of positional signal.
    """

    permutation: Permutation | None = None
    alpha: float = 1.0
    corruption: str | None = None
    signal: PositionKind | None = None

    def __str__(self) -> str:
        """The canonical text: parts joined by `+`, `clean` when there is none."""
        parts = []
        if self.permutation is not None:
            p = self.permutation
            parts.append(f"rpi(mode={p.mode},seed={p.seed},draw={p.draw})")
        if self.alpha != 1.0:
            only = f",signal={self.signal}" if self.signal else ""
            parts.append(f"alpha={float(self.alpha)!r}{only}")
        if self.corruption is not None:
            parts.append(self.corruption)
        return "+".join(parts) or "clean"


@dataclass(frozen=True)
class Scalar:
    """A reported number: a value with its 95 % interval, or None with the reason."""

    value: float | None
    low: float | None = None
    high: float | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Task:
    """What to measure under one condition.

    `ssdc` measures SSDC at every layer, or up to `last_layer`, at whose site the forward pass then
    stops; `top1` keeps the predicted class of every image, which needs the whole pass.
    """

    condition: Condition
    ssdc: bool = True
    top1: bool = False
    last_layer: int | None = None


@dataclass(frozen=True)
class Pass:
    """One model, data set and condition: the unit that is planned, run, stored and resumed.

    `settings` holds everything that can change its numbers; `key` is the hash of that.
    """

    key: str
    model: str
    task: Task
    settings: Mapping[str, Any]

    @property
    def condition(self) -> Condition:
        """The condition of its task."""
        return self.task.condition


@dataclass(frozen=True)
class Failure:
    """A model that could not be measured: a row of its own, never the end of a batch."""

    model: str
    error: str
    traceback: str | None = None
