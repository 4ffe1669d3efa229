"""A tiny model of any family, with a watch over what a test leaves behind in it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from probe.types import LoadedModel
from tests.families.local_checkpoints import Host, host
from tests.families.tiny import Watch, fresh

_built: dict[str, LoadedModel] = {}


@pytest.fixture
def watched(name: str) -> Iterator[LoadedModel]:
    """The tiny model called `name`; after the test nothing in it may have changed."""
    if name not in _built:
        _built[name] = fresh(name)
    watch = Watch(_built[name].module)
    yield _built[name]
    changed = watch.changes()
    if changed:
        del _built[name]
    assert changed == []


@pytest.fixture(params=["timm", "hf", "import"])
def model(request: pytest.FixtureRequest) -> Host:
    """A model of each loader, whose local checkpoints a test writes."""
    return host(request.param)
