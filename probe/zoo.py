"""The zoo: checkpoints by name, each resolved to a ModelSpec.

Nothing here imports torch, timm or transformers.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn, get_args

from probe.errors import UnknownModel, UsageError, did_you_mean
from probe.types import ModelSpec, PositionKind
from probe.yaml_file import YamlFile
from probe.zoo_file import Entry, read_zoo_file

SOURCES = ("timm", "hf", "file", "package", "import")
PREPROCESS_NAMES = ("imagenet", "half")
_CONSTRUCTOR = re.compile(r"\w+(\.\w+)*:\w+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Zoo:
    """Models and suites by name. `suites` keep their members as written: model names or tags."""

    models: Mapping[str, ModelSpec]
    suites: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> ModelSpec:
        """The entry called `name`.

        Raises:
            UnknownModel: if there is none, with the nearest names.
        """
        if name not in self.models:
            raise UnknownModel(
                f"no model '{name}' in the zoo.{did_you_mean(name, self.models)} "
                "`probe zoo list` shows all names"
            )
        return self.models[name]

    def resolve(self, text: str, arch: str | None = None) -> ModelSpec:
        """The model meant by a zoo name, `timm:NAME`, `hf:ID`, or the path of a file or folder.

        A zoo name wins over a path of the same name; write `./NAME` for the path. `arch` is the
        timm architecture of a state-dict file, and overrides the zoo's.

        Raises:
            UnknownModel: if nothing fits, with the nearest names.
            UsageError: if `arch` is given for a model that is not a file.
        """
        kind, _, rest = text.partition(":")
        if text in self.models:
            spec = self.models[text]
        elif kind in ("timm", "hf") and rest:
            spec = ModelSpec(name=text, source=text)
        elif text and os.path.exists(text):  # False too for what can be no path
            spec = ModelSpec(name=text, source=f"file:{Path(text).resolve()}")
        else:
            _unknown(text, self.models)
        if arch is None:
            return spec
        if not spec.source.startswith(("file:", "package:")):
            raise UsageError(
                f"--arch names the architecture of a state-dict file, and '{text}' is "
                f"{spec.source}, which carries its own; leave --arch out"
            )
        return replace(spec, arch=arch)

    def select(
        self, names: Iterable[str] = (), tags: Iterable[str] = (), group: str | None = None
    ) -> tuple[ModelSpec, ...]:
        """Entries among `names` (all when empty) that carry every tag and belong to `group`.

        Raises:
            UnknownModel: for a name that is no entry.
            UsageError: for a tag or group that no entry has.
        """
        wanted = tuple(tags)
        known_tags = {tag for spec in self.models.values() for tag in spec.tags}
        for tag in wanted:
            if tag not in known_tags:
                raise UsageError(f"no model has the tag '{tag}'.{did_you_mean(tag, known_tags)}")
        groups = {spec.group for spec in self.models.values() if spec.group}
        if group is not None and group not in groups:
            raise UsageError(f"no model has the group '{group}'.{did_you_mean(group, groups)}")
        chosen = [self[name] for name in names] or list(self.models.values())
        return tuple(
            spec for spec in chosen if set(wanted) <= set(spec.tags) and group in (None, spec.group)
        )

    def suite(self, name: str) -> tuple[ModelSpec, ...]:
        """The models of a suite, each once; a tag stands for its models in the zoo's order.

        Raises:
            UsageError: if there is no such suite, with the nearest names.
        """
        if name not in self.suites:
            raise UsageError(f"no suite '{name}' in the zoo.{did_you_mean(name, self.suites)}")
        found: dict[str, ModelSpec] = {}
        for member in self.suites[name]:
            specs = [self[member]] if member in self.models else self.select(tags=[member])
            found |= {spec.name: spec for spec in specs}
        return tuple(found.values())


def load_zoo(path: Path | None = None) -> Zoo:
    """The built-in zoo, with the models and suites of the file `path` laid over it.

    An entry of `path` replaces the whole built-in entry of the same name. `file:` sources and the
    files of `weights`, `preprocess`, `readout` and `labels` are relative to the zoo file's folder,
    where the module of an `import:` source is looked up first. Nothing is imported here.

    Raises:
        ZooError: `FILE:LINE: what is wrong`, for a file that cannot be read as a zoo.
    """
    zoo = _read(_builtin_file(), Zoo({}))
    return zoo if path is None else _read(path, zoo)


def _builtin_file() -> Path:
    # An installed wheel carries the file beside this module; a checkout has it at the top level.
    here = Path(__file__).resolve().parent
    shipped = here / "zoo.yaml"
    return shipped if shipped.is_file() else here.parent / "zoo.yaml"


def _unknown(text: str, names: Iterable[str]) -> NoReturn:
    if text.startswith(("file:", "package:")):
        hint = " Write the path alone, without a prefix"
    else:
        hint = did_you_mean(text, names)
        if re.fullmatch(r"[\w.]+", text):
            hint += f" A timm name is written timm:{text}"
        elif "/" in text:
            hint += f" No file or folder is there; a Hugging Face id is written hf:{text}"
    raise UnknownModel(
        f"unknown model '{text}'.{hint}. MODEL is a zoo name (`probe zoo list`), timm:NAME, "
        "hf:ID or a path"
    )


def _read(path: Path, base: Zoo) -> Zoo:
    parsed, source = read_zoo_file(path)
    models = dict(base.models)
    for name, entry in parsed.models.items():
        models[name] = _spec(source, name, entry)
    tags = {tag for spec in models.values() for tag in spec.tags}
    for name, entry in parsed.models.items():
        for index, tag in enumerate(entry.tags):
            if tag in models:
                source.fail(("models", name, "tags", index), f"tag '{tag}' is a model's name")
    for name, members in parsed.suites.items():
        for index, member in enumerate(members):
            if member not in models and member not in tags:
                near = did_you_mean(member, [*models, *tags])
                message = f"suite '{name}': '{member}' is neither a model nor a tag.{near}"
                source.fail(("suites", name, index), message)
    suites = {name: tuple(members) for name, members in parsed.suites.items()}
    return Zoo(models, {**base.suites, **suites})


def _spec(file: YamlFile, name: str, entry: Entry) -> ModelSpec:
    here = ("models", name)
    if not _NAME.fullmatch(name):
        file.fail(here, f"'{name}' is no model name: use letters, digits and . _ -")
    kind, _, rest = entry.source.partition(":")
    if kind not in SOURCES or not rest:
        known = ", ".join(f"{source}:..." for source in SOURCES)
        file.fail((*here, "source"), f"source '{entry.source}' must be one of {known}")
    if entry.arch and kind not in ("file", "package"):
        message = f"'arch' is for a state-dict file; {entry.source} carries its own architecture"
        file.fail((*here, "arch"), message)
    if kind == "import" and not _CONSTRUCTOR.fullmatch(rest):
        message = f"source '{entry.source}' must be import:MODULE:NAME, as in import:mynet:build"
        file.fail((*here, "source"), message)
    if entry.weights and kind != "import":
        message = f"'weights' is for an import: source; {entry.source} names its own"
        file.fail((*here, "weights"), message)
    if entry.revision and kind not in ("timm", "hf"):
        message = f"'revision' is for a hub's checkpoint; {entry.source} has none, so leave it out"
        file.fail((*here, "revision"), message)
    if entry.anatomy is not None and entry.family is not None:
        message = "an inline anatomy stands in place of a family's; leave one of the two out"
        file.fail((*here, "family"), message)
    kinds = ("none", *get_args(PositionKind))
    for part in (entry.position or "none").split("+"):
        if part not in kinds:
            near = did_you_mean(part, kinds) or f" Known: {', '.join(kinds)}"
            file.fail((*here, "position"), f"unknown position '{part}'.{near}")
    folder = file.path.resolve().parent
    source = f"file:{(folder / rest).resolve()}" if kind == "file" else entry.source
    preprocess = entry.preprocess
    if isinstance(preprocess, str) and preprocess not in PREPROCESS_NAMES:
        preprocess = str((folder / preprocess).resolve())

    def beside(given: str | None) -> str | None:
        return None if given is None else str((folder / given).resolve())

    return ModelSpec(
        name=name,
        source=source,
        preprocess=preprocess,
        weights=beside(entry.weights),
        folder=str(folder) if kind == "import" else None,
        anatomy=None if entry.anatomy is None else entry.anatomy.model_dump(),
        readout=beside(entry.readout),
        labels=beside(entry.labels),
        tags=tuple(entry.tags),
        provenance=entry.provenance.model_dump(exclude_none=True),
        **entry.model_dump(
            include={"arch", "options", "revision", "family", "data", "group", "position"}
        ),
    )
