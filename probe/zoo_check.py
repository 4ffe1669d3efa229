"""Whether entries of the zoo say what is so, as far as that is known without their weights.

Architectures of hub checkpoints are built and run without storage, shapes alone, so that a whole
zoo takes a minute; local checkpoints and networks of the user's own are loaded, weights and all.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import torch
from huggingface_hub import try_to_load_from_cache

from probe.errors import AnatomyError, CheckpointError, ProbeError
from probe.families.hf_files import CONFIG, PROCESSORS
from probe.families.hub import offline, why_not_there
from probe.families.timm_hub import resolve_name
from probe.hooks import edit_patches, observe
from probe.loading import load_model, required_preprocess
from probe.types import LoadedModel, ModelSpec, PositionKind, TokenSite

Status = Literal["ok", "failed", "not checked offline"]
ASKED_AT_ONCE = 16
UNCACHED = "its configuration is not in the local cache; --online fetches it"
Repository = tuple[str, str | None]


@dataclass(frozen=True)
class Checked:
    """What became of one entry.

    `reason` lists everything that is wrong, None if nothing is. `family` and `position` are what
    the architecture has, None where it could not be built.
    """

    name: str
    source: str
    status: Status
    reason: str | None
    family: str | None = None
    position: str | None = None


def check_entries(
    specs: Sequence[ModelSpec], *, online: bool = False, timeout: float = 10.0
) -> list[Checked]:
    """Check entries: one result each, in order; nothing that an entry does ends the others.

    The architecture exists and its family declares its anatomy, on random weights; one forward pass
    meets each site with the tokens that it declares; preprocessing resolves; `position` is what the
    anatomy has; group, pretraining, licence and, of a hub's checkpoint, the page of its source are
    given. No weights are downloaded.

    Args:
        specs: the entries.
        online: fetch configurations that the local cache lacks, and ask the hub, in parallel,
            whether it has every repository and revision.
        timeout: seconds to wait for each of these answers.
    """
    asked = _ask_hub(specs, timeout) if online else {}
    return [_check(spec, online, asked) for spec in specs]


def _ask_hub(specs: Sequence[ModelSpec], timeout: float) -> dict[Repository, str | None]:
    """Each repository of the entries, with the reason why the hub would not give it."""
    wanted = list(dict.fromkeys(repo for spec in specs if (repo := _repository(spec)) is not None))
    with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
        reasons = pool.map(lambda one: why_not_there(one[0], one[1], timeout), wanted)
        return dict(zip(wanted, reasons, strict=True))


def _repository(spec: ModelSpec) -> Repository | None:
    """The hub's repository and the revision of it that an entry means; None for other places."""
    kind, _, name = spec.source.partition(":")
    if kind == "hf":
        return name, spec.revision
    if kind != "timm":
        return None
    try:
        _, config = resolve_name(name)
    except ProbeError:  # told when the architecture is looked at
        return None
    if config is None or not config.hf_hub_id:
        return None
    repo, _, revision = config.hf_hub_id.partition("@")
    return repo, spec.revision or revision or None


def _check(spec: ModelSpec, online: bool, asked: dict[Repository, str | None]) -> Checked:
    faults = _unsaid(spec)
    repo = _repository(spec)
    refused = asked.get(repo) if repo is not None else None
    if refused is not None:
        faults.append(refused)
    model, unchecked = None, False
    try:
        if spec.source.startswith("hf:") and (refused is not None or not online):
            # What has just been refused is not asked for again.
            unchecked = not _cached(spec)
            if not unchecked:
                with offline():
                    model = _outline(spec)
        else:
            model = _outline(spec)
        if model is not None:
            faults += _contradictions(spec, model)
    except Exception as error:  # whatever one entry does, the others are checked
        faults.append(_words(error))
    status: Status = "failed" if faults else "not checked offline" if unchecked else "ok"
    if unchecked and refused is None:
        faults.append(UNCACHED)
    return Checked(
        spec.name,
        spec.source,
        status,
        "; ".join(faults) or None,
        model.family if model is not None else None,
        _position(model) if model is not None else None,
    )


def _unsaid(spec: ModelSpec) -> list[str]:
    """What an entry leaves out, and files that it names in vain."""
    kind, facts = spec.source.partition(":")[0], spec.provenance
    needed = ["pretraining", "licence", *(["source"] if kind in ("timm", "hf") else [])]
    missing = ["group"] if spec.group is None else []
    missing += [f"provenance.{name}" for name in needed if not facts.get(name)]
    faults = [f"{', '.join(missing)} missing; add to the entry"] if missing else []
    page = facts.get("source")
    if page is not None and not page.startswith(("https://", "http://")):
        faults.append(f"provenance.source is '{page}'; give the address of a page")
    for name, path in (("readout", spec.readout), ("labels", spec.labels)):
        if path is not None and not Path(path).is_file():
            faults.append(f"{name} names '{Path(path).name}', which is no file")
    return faults


def _outline(spec: ModelSpec) -> LoadedModel:
    """The model as its family declares it: of a hub's checkpoint without weights or storage."""
    kind, _, name = spec.source.partition(":")
    if kind in ("file", "package", "import"):
        return _walked(load_model(spec, device="cpu"))
    if kind == "timm":
        resolved, config = resolve_name(name)
        if config is None or not config.has_weights:
            raise CheckpointError(
                f"timm has no pretrained weights for {resolved}; name another tag"
            )
    if spec.anatomy is not None:  # it is checked on values
        return _walked(load_model(spec, random_init=True, device="cpu"))
    try:
        with torch.device("meta"):
            return _walked(load_model(spec, random_init=True, device="meta"))
    except RuntimeError:  # a family or a network that looks at values
        return _walked(load_model(spec, random_init=True, device="cpu"))


def _walked(model: LoadedModel) -> LoadedModel:
    """The model, after one forward pass in which each site gave the tokens that it declares.

    Raises:
        AnatomyError: if one gave others, or none.
    """
    anatomy, seen = model.anatomy, set[TokenSite]()
    sites = (*anatomy.attn_in, *anatomy.block_out)
    weight = next(model.module.parameters())
    images = torch.zeros(1, 3, *anatomy.image_size, dtype=weight.dtype, device=weight.device)
    with (
        torch.inference_mode(),
        edit_patches(model.module, anatomy.patches, lambda patches: patches),
        observe(model.module, sites, lambda site, tokens: seen.add(site)),
    ):
        model.forward(images)
    missed = [site.module for site in sites if site not in seen]
    if missed:
        raise AnatomyError(f"module '{missed[0]}' never ran; the {model.family} family is wrong")
    return model


def _contradictions(spec: ModelSpec, model: LoadedModel) -> list[str]:
    faults = []
    try:
        required_preprocess(model)
    except ProbeError as error:
        why = [note for note in model.notes if "preprocess" in note or "crop mode" in note]
        faults.append("; ".join([str(error), *why]))
    found = _position(model)
    if spec.position is None:
        faults.append(f"position missing; the anatomy has {found}")
    else:
        # Whether an added table is learned or a fixed sin-cos one is told by its values alone.
        exact = model.identity.weights.startswith("sha256:")
        said = _kinds(spec.position.split("+"), exact)
        if said != _kinds(found.split("+"), exact):
            faults.append(f"position says {spec.position}, but the anatomy has {found}")
    return faults


def _kinds(names: Sequence[str], exact: bool) -> set[str]:
    kinds = set(names) - {"none"}
    if not exact and "sinusoidal" in kinds:
        kinds = kinds - {"sinusoidal"} | {"absolute"}
    return kinds


def _position(model: LoadedModel) -> str:
    """The kinds of the model's positional signals, joined by `+`, as an entry writes them."""
    has = {site.kind for site in model.anatomy.positions}
    return "+".join(kind for kind in get_args(PositionKind) if kind in has) or "none"


def _cached(spec: ModelSpec) -> bool:
    """Whether the local cache knows the configuration and what there is of an image processor."""
    repo = spec.source.removeprefix("hf:")
    config, *processors = (
        try_to_load_from_cache(repo, name, revision=spec.revision) for name in (CONFIG, *PROCESSORS)
    )
    known = any(isinstance(one, str) for one in processors) or None not in processors
    return isinstance(config, str) and (known or spec.preprocess is not None)


def _words(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0] if isinstance(error, ProbeError) else f"{type(error).__name__}: {lines[0]}"
