"""What the classes of a model's head are called: its own label names, and WordNet ids."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

from probe.errors import DataError

WORDNET_ID = re.compile(r"n[0-9]{8}")
# timm knows none below, and need not be imported to say so.
SMALLEST_IMAGENET = 1000
PLACEHOLDER = re.compile(r"LABEL_[0-9]+")


class HeadLabels:
    """A head of `classes` outputs, and what its classes are called.

    Names are the model's own, else those of the ImageNet variant with a head of this width; they
    match whatever their case, spaces, underscores and hyphens. A name with commas (`tench, Tinca
    tinca`) also matches by each of its parts. transformers' placeholders (`LABEL_0`) are no names.
    """

    def __init__(self, classes: int, names: Sequence[str] | None) -> None:
        """Keep the names, if they are real ones.

        Raises:
            DataError: if there are not as many names as classes.
        """
        self.classes = classes
        if names is not None and len(names) != classes:
            raise DataError(
                f"the model has {len(names)} label names for {classes} outputs; mend id2label in "
                "its config.json"
            )
        placeholders = names is not None and all(PLACEHOLDER.fullmatch(name) for name in names)
        self._own = None if names is None or placeholders else tuple(names)

    @cached_property
    def subset(self) -> str | None:
        """The ImageNet variant, as timm names it, that has a head of this width; None if none."""
        if self.classes < SMALLEST_IMAGENET:
            return None
        from timm.data import infer_imagenet_subset

        found = infer_imagenet_subset({"num_classes": self.classes})
        return None if found is None else str(found)

    @cached_property
    def names(self) -> tuple[str, ...] | None:
        """A name per class: the model's own, else ImageNet's, else None."""
        if self._own is not None or self.subset is None:
            return self._own
        from timm.data import ImageNetInfo

        return tuple(ImageNetInfo(self.subset).label_descriptions())

    @property
    def whose(self) -> str:
        """Whose `names` these are, in words."""
        return f"{self.subset}'s label names" if self._own is None else "the model's label names"

    @cached_property
    def _whole(self) -> dict[str, set[int]]:
        return _index((name, i) for i, name in enumerate(self.names or ()))

    @cached_property
    def _parts(self) -> dict[str, set[int]]:
        return _index(
            (part, i) for i, name in enumerate(self.names or ()) for part in name.split(",")
        )

    def named(self, name: str) -> frozenset[int]:
        """The classes that are called `name`: none, one, or several."""
        word = plain(name)
        return frozenset(self._whole.get(word) or self._parts.get(word) or ())

    @cached_property
    def wordnet(self) -> dict[str, int]:
        """Class by WordNet id; empty when this is no ImageNet head.

        Taken from the model's names where these are WordNet ids, else from timm's `ImageNetInfo`
        by the width of the head, unless fewer than half of the model's own names are ImageNet's.
        """
        if self._own is not None and all(WORDNET_ID.fullmatch(name) for name in self._own):
            return {name: index for index, name in enumerate(self._own)}
        if self.subset is None:
            return {}
        from timm.data import ImageNetInfo

        info = ImageNetInfo(self.subset)
        if self._own is not None:
            same = sum(
                index in self.named(str(description).split(",")[0])
                for index, description in enumerate(info.label_descriptions())
            )
            if 2 * same < self.classes:
                return {}
        return {name: index for index, name in enumerate(info.label_names())}

    def label(self, written: str) -> int:
        """The class that a label file means: a whole number, a WordNet id or a label name.

        Raises:
            DataError: if it is none of these, or several.
        """
        if re.fullmatch(r"-?[0-9]{1,18}", written):
            return self.inside(int(written))
        if written in self.wordnet:
            return self.wordnet[written]
        found = self.named(written)
        if len(found) == 1:
            return next(iter(found))
        if found:
            raise DataError(
                f"label '{written}' fits classes {listed(sorted(found))}; write the number"
            )
        raise DataError(
            f"label '{written}' is no class of this model; write a number from 0 to "
            f"{self.classes - 1}"
            + (", a WordNet id" if self.wordnet else "")
            + (f" or one of {self.whose}" if self.names else "")
        )

    def inside(self, index: int) -> int:
        """`index`, if the head has it.

        Raises:
            DataError: if it is outside the head.
        """
        if not 0 <= index < self.classes:
            raise DataError(
                f"label {index} is outside the model's head (0 to {self.classes - 1}); choose a "
                "model for this data, or correct the label"
            )
        return index


def _index(pairs: Iterable[tuple[str, int]]) -> dict[str, set[int]]:
    found: dict[str, set[int]] = defaultdict(set)
    for name, index in pairs:
        found[plain(name)].add(index)
    return found


def plain(name: str) -> str:
    """`name` without differences of case, spaces, underscores and hyphens."""
    return " ".join(re.split(r"[\s_-]+", name.strip())).casefold()


def listed(things: Sequence[object], count: int = 3) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(things) - count} more" if len(things) > count else ""
    return ", ".join(map(str, things[:count])) + more
