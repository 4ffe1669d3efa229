"""Model cards: made when a model is loaded, found again without loading it or importing torch.

A card lies in `RUNS/cards/` under a key of everything that decides what it says: the zoo entry,
the load options, the settings, the data, the versions and the content of local files. Hub weights
are known by the commit in the local cache, without a call to the hub.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe import plugins
from probe.errors import DataError, NotApplicable, UsageError
from probe.plan import Settings, versions
from probe.records import ModelCard
from probe.remembered import Remembered
from probe.store import slug, write_atomically
from probe.types import ModelSpec

if TYPE_CHECKING:
    from probe.data.labels import LabelMap
    from probe.data.source import Source
    from probe.session import LoadOptions
    from probe.types import LoadedModel

CHECKPOINT_SUFFIXES = (".json", ".safetensors", ".bin", ".pth", ".pt", ".ckpt")
COMMIT = re.compile(r"[0-9a-f]{40}")


def card_key(
    spec: ModelSpec,
    options: LoadOptions,
    settings: Settings,
    data: Mapping[str, Any],
    files: Remembered,
) -> str:
    """The key of the card of `spec` over this data: equal keys, equal cards, hub weights apart.

    Args:
        spec: the model.
        options: how it is loaded.
        settings: how it is measured.
        data: facts of the data set, as a pass records them.
        files: content hashes of local files.
    """
    fields = asdict(spec) | {"source": public_source(spec)}
    fields.pop("folder")
    local = dict.fromkeys(("weights", "preprocess", "readout", "labels"))
    for name in local:  # the content counts, not the place
        path = fields.pop(name)
        local[name] = files.sha256(Path(path)) or path if isinstance(path, str) else path
    chosen = asdict(options)
    if chosen["preprocess"] is not None:
        chosen["preprocess"] = files.sha256(Path(chosen["preprocess"])) or chosen["preprocess"]
    content = {
        "card": 2,
        "spec": fields,
        "local": local,
        "weights": {path.name: files.sha256(path) for path in _local_files(spec)},
        "code": sorted(str(files.sha256(path)) for path in _code_files(spec)),
        "options": chosen,
        "settings": {
            k: v for k, v in asdict(settings).items() if k not in ("batch_size", "workers")
        },
        "data": {k: v for k, v in data.items() if k != "name"},
        # Which plugins the model needs is known once it is loaded; any that is there counts.
        "versions": versions() | plugins.installed(),
        "place": _accelerators(),
    }
    text = json.dumps(content, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def public_source(spec: ModelSpec) -> str:
    """The source, of a local path the last part only: outputs name no folder of a machine."""
    kind, _, place = spec.source.partition(":")
    return f"file:{Path(place).name}" if kind == "file" else spec.source


def _local_files(spec: ModelSpec) -> list[Path]:
    """The files that a local checkpoint is read from; none for the hub's."""
    kind, _, place = spec.source.partition(":")
    if kind not in ("file", "package"):
        return []
    path = Path(__file__).resolve().parent / place if kind == "package" else Path(place)
    if os.path.isdir(path):
        return sorted(
            entry
            for entry in path.iterdir()
            if entry.suffix in CHECKPOINT_SUFFIXES and entry.is_file()
        )
    beside = path.with_name("config.json")
    return [found for found in (path, beside) if os.path.isfile(found)]


def _code_files(spec: ModelSpec) -> list[Path]:
    """The source files that an `import:` constructor may come from: any of them may change it."""
    kind, _, place = spec.source.partition(":")
    if kind != "import":
        return []
    top = place.partition(":")[0].partition(".")[0]
    found = set() if spec.folder is None else set(Path(spec.folder).glob("*.py"))
    places = [] if spec.folder is None else [Path(spec.folder) / top]
    installed = importlib.util.find_spec(top)
    if installed is not None and installed.origin is not None:
        found.add(Path(installed.origin))
        places += [Path(folder) for folder in installed.submodule_search_locations or ()]
    for folder in places:
        found.update(folder.rglob("*.py"))
    return sorted(path for path in found if path.is_file())


def _accelerators() -> list[str]:
    """What `--device auto` depends on, as far as it can be told without importing torch."""
    devices = sorted(glob.glob("/dev/nvidia[0-9]*") + glob.glob("/dev/kfd"))
    return [sys.platform, os.environ.get("CUDA_VISIBLE_DEVICES", "-"), *devices]


@dataclass(frozen=True)
class Cards:
    """The cards under a runs folder."""

    runs: Path

    def path(self, model: str, key: str) -> Path:
        """Where a card lies."""
        return self.runs / "cards" / f"{slug(model, 60)}-{key[:20]}.json"

    def load(self, model: str, key: str) -> ModelCard | None:
        """The stored card, None if there is none or the hub's weights have moved on."""
        try:
            card = ModelCard.from_json(self.path(model, key).read_bytes())
        except (OSError, ValueError):
            return None
        return card if card.key == key and _current(card) else None

    def save(self, card: ModelCard) -> Path:
        """Write a card."""
        path = self.path(card.model, card.key)
        write_atomically(path, card.to_json())
        return path


def _current(card: ModelCard) -> bool:
    """Whether the weights that would be loaded now are those of the card."""
    revision = card.common["revision"]
    if card.hub is None:
        local = card.source.startswith(("file:", "package:"))
        return local or str(card.common["weights"]).startswith("random:")
    repository, asked = card.hub
    if asked is not None and COMMIT.fullmatch(asked):
        return asked == revision
    from huggingface_hub import constants

    folder = "models--" + repository.replace("/", "--")
    ref = Path(constants.HF_HUB_CACHE) / folder / "refs" / (asked or "main")
    try:
        return ref.read_text(encoding="utf-8").strip() == revision
    except OSError:
        return False


@dataclass(frozen=True)
class Judged:
    """A model as it predicts, with the labels that judge it, or why they do not."""

    model: LoadedModel
    labels: LabelMap | None
    reason: str | None
    readout: str | None = None

    def because(self, reason: str) -> Judged:
        """The same, with the reason in other words."""
        return replace(self, reason=reason)


def judged(spec: ModelSpec, source: Source, model: LoadedModel) -> Judged:
    """The model with its readout if the zoo gives one, its labels, or the reason for none.

    Raises:
        UsageError: if the readout of the zoo entry does not fit.
    """
    from probe.data.labels import check_for_fragility
    from probe.judging import labels_of, with_head

    if model.predict is None and spec.readout is None:
        return Judged(model, None, "the model has no head to predict with, and no readout")
    headed, names = with_head(spec, model, None)
    readout = headed.notes[len(model.notes)] if spec.readout else None  # what it was told first
    try:
        labels = labels_of(spec, source, headed, names, None)
        check_for_fragility(labels)
    except (UsageError, DataError) as error:
        return Judged(headed, None, " ".join(str(error).split()), readout)
    return Judged(headed, labels, None, readout)


def make_card(spec: ModelSpec, found: Judged, common: Mapping[str, Any], key: str) -> ModelCard:
    """The card of a loaded model.

    Args:
        spec: the model.
        found: the model as it predicts.
        common: what its passes record, but their condition.
        key: the card's key.
    """
    from probe.audit.budget import macs
    from probe.audit.card import interface
    from probe.interventions import scalable_positions

    model = found.model
    try:
        signals = sorted({site.kind for site in scalable_positions(model.anatomy)})
        unscaled = None
    except NotApplicable as error:
        signals, unscaled = [], str(error)
    kinds = "+".join(dict.fromkeys(site.kind for site in model.anatomy.positions))
    multiply_adds, reason = macs(model)
    random = model.identity.weights.startswith("random:") and model.identity.revision is None
    return ModelCard(
        key=key,
        model=spec.name,
        source=public_source(spec),
        group=spec.group,
        tags=spec.tags,
        provenance=dict(spec.provenance),
        hub=None if random else _hub(spec, model),
        position=spec.position or kinds or "none",
        grids=tuple((s.grid.rows, s.grid.cols) for s in model.anatomy.sites(common["site"])),
        params=sum(parameter.numel() for parameter in model.module.parameters()),
        macs=multiply_adds,
        macs_reason=reason,
        signals=tuple(signals),
        unscaled=unscaled,
        head=model.predict is not None,
        unjudged=found.reason,
        readout=found.readout,
        common=dict(common),
        interface=interface(model, int(common["seed"])),
    )


def _hub(spec: ModelSpec, model: LoadedModel) -> tuple[str, str | None] | None:
    kind, _, place = spec.source.partition(":")
    if kind == "hf":
        return place, spec.revision
    if kind != "timm":
        return None
    named = getattr(model.module, "pretrained_cfg", {}).get("hf_hub_id") or ""
    repository, _, revision = named.partition("@")
    return (repository, spec.revision or revision or None) if repository else None
