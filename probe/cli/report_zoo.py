"""Which models a report is over, what it is called, and what it measures."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from probe.errors import UsageError, did_you_mean
from probe.plan import REPORTED
from probe.types import ModelSpec
from probe.zoo import Zoo, load_zoo


def chosen_models(
    names: Sequence[str],
    suite: str | None,
    tags: Sequence[str],
    group: str | None,
    zoo_file: Path | None,
) -> tuple[ModelSpec, ...]:
    """The models named, of the suite, or of the zoo file, that have every tag and the group.

    Raises:
        UsageError: if none is chosen, or a name, suite, tag or group is not known.
    """
    zoo = load_zoo(zoo_file)
    if suite is not None and names:
        raise UsageError("name models or a --suite, not both")
    if names:
        specs = tuple(zoo.resolve(text) for text in names)
    elif suite is not None:
        specs = zoo.suite(suite)
    elif tags or group:
        specs = tuple(zoo.models.values())
    elif zoo_file is not None:
        specs = _own(zoo, load_zoo())
    else:
        raise UsageError("name models, or choose some with --suite, --tag, --group or --zoo FILE")
    if tags or group:
        zoo.select(tags=tags, group=group)  # refuses a tag or group that no model has
        specs = tuple(
            one for one in specs if set(tags) <= set(one.tags) and group in (None, one.group)
        )
    if not specs:
        what = ", ".join([*(f"--tag {tag}" for tag in tags), *([f"--group {group}"] * bool(group))])
        raise UsageError(
            f"no model is left under {what}; leave one out" if what else f"{zoo_file} has no models"
        )
    listed = [spec.name for spec in specs]
    repeated = sorted({name for name in listed if listed.count(name) > 1})
    if repeated:
        raise UsageError(f"{', '.join(repeated)} is named more than once")
    return specs


def _own(zoo: Zoo, built_in: Zoo) -> tuple[ModelSpec, ...]:
    """The models that a zoo file adds or replaces."""
    return tuple(s for name, s in zoo.models.items() if built_in.models.get(name) != s)


def named(
    names: Sequence[str],
    suite: str | None,
    tags: Sequence[str],
    group: str | None,
    zoo_file: Path | None,
) -> str:
    """The title of the report: what its models were chosen by; a path's last part alone."""
    shown = [Path(name).name if Path(name).exists() else name for name in names]
    chosen = [*([suite] if suite else []), *tags, *([group] if group else [])]
    if shown and len(shown) > 4:
        return f"{shown[0]} and {len(shown) - 1} more"
    return ", ".join([*shown, *chosen]) or (zoo_file.stem if zoo_file else "zoo")


def measures_of(text: str | None) -> frozenset[str]:
    """The measures of `--measure`; all when it is not given.

    Raises:
        UsageError: if one is unknown.
    """
    if text is None:
        return frozenset(REPORTED)
    found = {part.strip() for part in text.split(",")}
    for name in sorted(found - set(REPORTED)):
        near = did_you_mean(name, REPORTED)
        raise UsageError(f"--measure takes {', '.join(REPORTED)}; got '{name}'.{near}")
    return frozenset(found)


def shard_of(text: str | None) -> tuple[int, int] | None:
    """(i, n) of `--shard I/N`, i counting from 1.

    Raises:
        UsageError: for anything else.
    """
    if text is None:
        return None
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard takes I/N, as 1/4 for the first of four shares; got '{text}'")
    return int(match[1]), int(match[2])


def share_of(specs: tuple[ModelSpec, ...], shard: tuple[int, int] | None) -> tuple[ModelSpec, ...]:
    """Every n-th model from the i-th on; all without a shard.

    Raises:
        UsageError: if there are fewer models than shares, so that this one is empty.
    """
    if shard is None:
        return specs
    share = specs[shard[0] - 1 :: shard[1]]
    if not share:
        raise UsageError(
            f"--shard {shard[0]}/{shard[1]} has no model, since only {len(specs)} are chosen; "
            "use fewer shares"
        )
    return share
