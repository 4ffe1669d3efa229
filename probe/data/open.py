"""`--data TEXT` to a data source."""

from __future__ import annotations

import os
from collections.abc import Callable

from probe import plugins
from probe.data.source import IndexedSource, Source, StreamSource, check_limit
from probe.errors import DataError, ProbeError, UsageError, did_you_mean

BUILT_IN = ("photos", "digits")
RESERVED = frozenset((*BUILT_IN, "hf"))
CHOICES = (
    "photos, digits, a folder of images, a parquet file or folder, or a hub data set "
    "(OWNER/NAME or hf:NAME)"
)


def open_data(text: str, *, split: str | None = None, limit: int | None = None) -> Source:
    """Open `photos`, `digits`, a folder of images, parquet files, or a hub data set.

    An existing path wins over a hub data set of the same name; `./photos` is a folder of that name.
    `split` chooses a part of digits, parquet files or a hub data set. `NAME` or `NAME:ADDRESS` is
    what another package adds under that name through `probe.data`; an existing path wins over it.

    Raises:
        UsageError: if `text` is none of these, or `split` or `limit` does not fit.
        DataError: if there is nothing to read there.
    """
    check_limit(limit)
    if text == "digits":
        from probe.data.builtin import Digits

        return Digits(text, split, limit)
    if text == "photos":
        _refuse_split(split, "photos")
        from probe.data.builtin import Photos

        return Photos(text, limit)
    path = os.path.expanduser(text)
    if not text.startswith("hf:") and os.path.exists(path):
        return _open_path(path, text, split, limit)
    plugin = _added().find(text.partition(":")[0])
    if plugin is not None:
        return _open_added(plugin, text, split, limit)
    if text.startswith("hf:") or _may_be_hub(text):
        from probe.data.hub import HubStream, parse_address

        address = parse_address(text)
        if address is not None:
            return HubStream(address, text, split, limit)
    raise UsageError(_unknown(text))


def _open_path(path: str, text: str, split: str | None, limit: int | None) -> Source:
    from probe.data.folder import ImageFolder, is_image, walk

    if os.path.isdir(path):
        files = walk(path)
        images = [file for file in files if is_image(file)]
        tables = [file for file in files if file.lower().endswith(".parquet")]
        if images and tables:
            raise DataError(
                f"'{text}' holds {len(images)} images and {len(tables)} parquet files; "
                "give a folder with one kind"
            )
        if not tables:
            _refuse_split(split, "an image folder")
            return ImageFolder(path, images, text, limit)
    elif path.lower().endswith(".parquet"):
        path, table = os.path.split(path)
        tables = [table]
    else:
        raise UsageError(f"'{text}' is a single file and no .parquet; give the folder it lies in")
    from probe.data.parquet import Parquet

    return Parquet(path or ".", tables, text, split, limit)


def _open_added(plugin: plugins.Plugin, text: str, split: str | None, limit: int | None) -> Source:
    opener: Callable[..., object] = plugin.load(Callable)  # type: ignore[arg-type]
    try:
        source = opener(text.partition(":")[2], split=split, limit=limit)
    except ProbeError:
        raise
    except Exception as error:
        raise DataError(
            f"'{text}' cannot be opened: {plugin} raised {plugins.first_line(error)}; report it to "
            "that package"
        ) from error
    if not isinstance(source, IndexedSource | StreamSource):
        raise DataError(
            f"'{text}' cannot be opened: {plugin} gave a {type(source).__name__}, which is no "
            "IndexedSource or StreamSource; report it to that package"
        )
    source.name, source.packages = text, plugin.identity
    return source


def _added() -> plugins.Registry:
    return plugins.registry(plugins.DATA, RESERVED)


def _refuse_split(split: str | None, what: str) -> None:
    if split is not None:
        raise UsageError(f"--split '{split}': {what} has no splits; leave --split out")


def _may_be_hub(text: str) -> bool:
    """Whether OWNER/NAME can be meant: not when OWNER is a folder here, so that NAME is a typo."""
    owner, slash, rest = text.partition("/")
    return bool(slash) and "/" not in rest and not os.path.isdir(owner)


def _unknown(text: str) -> str:
    if "/" not in text and os.sep not in text:
        here = (entry for entry in os.listdir() if not entry.startswith("."))
        near = did_you_mean(text, [*BUILT_IN, *_added().plugins, *here])
        return f"unknown data '{text}'.{near} --data takes {CHOICES}"
    folder, name = os.path.split(os.path.expanduser(text).rstrip("/"))
    inside = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    return f"'{text}' does not exist.{did_you_mean(name, inside)} --data takes {CHOICES}"
