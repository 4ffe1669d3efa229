"""The sections of a recipe, checked: what each key means and may be."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    Strict,
    field_validator,
    model_validator,
)

from probe.families.controlled import LinearInit
from probe.types import Preprocess

STRICT = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
Share = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
Text = Annotated[str, Field(min_length=1)]
Mean = Annotated[float, Field(ge=0, le=1)]
# YAML has lists and no tuples.
Range = Annotated[tuple[Positive, Annotated[float, Field(gt=0, le=1)]], Strict(False)]
Means = Annotated[tuple[Mean, Mean, Mean], Strict(False)]
Stds = Annotated[tuple[Positive, Positive, Positive], Strict(False)]


def _name_or_share(value: Any) -> str | float:
    if (isinstance(value, str) and value) or (isinstance(value, float) and 0 < value < 1):
        return value
    raise ValueError(f"give the name of a part, or a share above 0 and below 1, not {value!r}")


class Data(BaseModel):
    """Where images come from.

    `train`, `validation` and `test` are splits, or folders inside a folder. `validation` may be a
    share instead, 0..1, held out of each class of the training part by a fixed seed. `classes`
    chooses among the classes: the name of a shipped list, or a file with one class per line.
    """

    model_config = STRICT
    source: Text
    train: Text
    validation: Annotated[str | float, PlainValidator(_name_or_share)]
    test: Text
    classes: Text | None = None


class Image(BaseModel):
    """How images reach the model: pixels, and mean and std for values in 0..1.

    `resize` is `squash` (both sides to `size`), `short` (short side, then the centre), or `none`
    (images have that size, others are refused).
    """

    model_config = STRICT
    size: Count
    resize: Literal["squash", "short", "none"]
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"]
    mean: Means
    std: Stds

    def preprocess(self, size: int | None = None) -> Preprocess:
        """The same in the project's terms, at another size in pixels if one is given."""
        side = size or self.size
        return Preprocess(
            size=(side, side),
            resize={"squash": ("squash", (side, side)), "short": ("short", side), "none": None}[
                self.resize
            ],
            crop=(side, side) if self.resize == "short" else None,
            interpolation=self.interpolation,
            mean=self.mean,
            std=self.std,
            source="checkpoint",
        )


class Augment(BaseModel):
    """What training does to an image, in this order; all seeded.

    `resized_crop` takes a crop of that share of the area, (low, high), from an image of `stored`
    pixels; `flip` mirrors half of the images; `shift` moves by up to so many pixels, black behind;
    `rand_augment` is timm's text for it; `mixup` and `cutmix` are timm's alphas, 0 for none.
    """

    model_config = STRICT
    stored: Count | None = None
    resized_crop: Range | None = None
    flip: bool = False
    shift: Annotated[int, Field(ge=0)] = 0
    rand_augment: Text | None = None
    mixup: Annotated[float, Field(ge=0)] = 0.0
    cutmix: Annotated[float, Field(ge=0)] = 0.0

    @field_validator("resized_crop")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and value[0] > value[1]:
            raise ValueError(f"give the smaller share first, not {list(value)}")
        return value


class Dropout(BaseModel):
    """Dropout of tokens, of attention weights, and of what attention and MLP give."""

    model_config = STRICT
    embedding: Share = 0.0
    attention: Share = 0.0
    mlp: Share = 0.0


class Model(BaseModel):
    """The network; see `probe.families.controlled.Network`."""

    model_config = STRICT
    patch_size: Count
    width: Count
    depth: Count
    heads: Count
    mlp_ratio: Positive
    final_norm: bool
    pos_init_std: Annotated[float, Field(ge=0)]
    linear_init: LinearInit
    rope_temperature: Positive
    dropout: Dropout = Dropout()
    drop_path: Share = 0.0


class Training(BaseModel):
    """How weights are learnt. `steps` or `epochs`, a step being one update from `batch` images.

    `position_lr_factor` multiplies the learning rate of a learned position table. `decay` says what
    `weight_decay` shrinks: `matrices` (neither vectors, nor the class token, nor the table) or
    `all`. `warmup` is a share of the steps. `accumulate` cuts a batch into so many forward passes.
    """

    model_config = STRICT
    steps: Count | None = None
    epochs: Count | None = None
    batch: Count
    optimizer: Literal["adam", "adamw"]
    lr: Positive
    position_lr_factor: Positive = 1.0
    betas: Annotated[tuple[Share, Share], Strict(False)]
    weight_decay: Annotated[float, Field(ge=0)]
    decay: Literal["matrices", "all"]
    schedule: Literal["cosine", "constant"]
    warmup: Share = 0.0
    clip: Positive | None = None
    label_smoothing: Share = 0.0
    ema: Annotated[float, Field(gt=0, lt=1)] | None = None
    precision: Literal["no", "bf16", "fp16"] = "no"
    accumulate: Count = 1
    compile: bool = False

    @model_validator(mode="after")
    def _one_length(self) -> Training:
        if (self.steps is None) == (self.epochs is None):
            raise ValueError("give either steps or epochs; --set train.steps= takes one back")
        if self.batch % self.accumulate:
            raise ValueError("accumulate must divide batch")
        return self


class Keep(BaseModel):
    """What is written: metrics and resumable states every so many steps, weights in `dtype`."""

    model_config = STRICT
    log_every: Count
    save_every: Count
    evaluate_every: Count | None = None
    dtype: Literal["float32", "float16"] = "float32"
