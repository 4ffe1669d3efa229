"""Cards say what a report needs without the model, and are found again only while that is true."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants
from PIL import Image

from probe import remembered
from probe.cards import Cards, card_key, judged, make_card, public_source
from probe.data.builtin import Photos
from probe.data.memory import InMemory
from probe.plan import Settings, make_passes
from probe.records import ModelCard
from probe.remembered import DataSet, Remembered
from probe.session import LoadOptions, common_settings
from probe.types import Condition, LoadedModel, ModelSpec, Task
from tests.small_runs import pictures, ready

SPEC = ModelSpec(name="vit", source="timm:test_vit")
OPTIONS = LoadOptions()
CLEAN = Condition()
DATA: dict[str, Any] = {"name": "photos", "kind": "photos", "fingerprint": "blake2b:0", "taken": 5}


def known(folder: Path) -> Remembered:
    return Remembered(folder / "files.json")


def key(
    folder: Path,
    spec: ModelSpec = SPEC,
    options: LoadOptions = OPTIONS,
    settings: Settings = Settings(),  # noqa: B008
    data: dict[str, Any] = DATA,
) -> str:
    return card_key(spec, options, settings, data, known(folder))


class TestKey:
    def test_what_decides_a_card_changes_its_key(self, tmp_path: Path) -> None:
        keys = [
            key(tmp_path),
            key(tmp_path, replace(SPEC, group="mine")),
            key(tmp_path, replace(SPEC, options={"depth": 3})),
            key(tmp_path, replace(SPEC, revision="main")),
            key(tmp_path, options=replace(OPTIONS, paper=True)),
            key(tmp_path, options=replace(OPTIONS, random_init=True)),
            key(tmp_path, settings=Settings(seed=1)),
            key(tmp_path, settings=Settings(site="block_out")),
            key(tmp_path, data=DATA | {"fingerprint": "blake2b:1"}),
            key(tmp_path, data=DATA | {"taken": 4}),
        ]
        assert len(set(keys)) == len(keys)

    def test_what_changes_no_number_does_not(self, tmp_path: Path) -> None:
        assert key(tmp_path, data=DATA | {"name": "./photos"}) == key(tmp_path)
        assert key(tmp_path, settings=Settings(workers=3, batch_size=7)) == key(tmp_path)

    def test_files_count_by_content(self, tmp_path: Path) -> None:
        for name in ("a", "b"):
            folder = tmp_path / name
            folder.mkdir()
            (folder / "vit.pth").write_bytes(b"weights")
            (folder / "labels.csv").write_text("name,label")

        def spec(name: str) -> ModelSpec:
            return replace(
                SPEC,
                source=f"file:{tmp_path / name}/vit.pth",
                labels=f"{tmp_path / name}/labels.csv",
            )

        first = key(tmp_path, spec("a"))
        assert key(tmp_path, spec("b")) == first
        (tmp_path / "b/vit.pth").write_bytes(b"other!!")
        assert key(tmp_path, spec("b")) != first
        (tmp_path / "b/vit.pth").write_bytes(b"weights")
        assert key(tmp_path, spec("b")) == first
        (tmp_path / "b/labels.csv").write_text("name,label\n")
        assert key(tmp_path, spec("b")) != first
        assert key(tmp_path, replace(SPEC, source=f"file:{tmp_path}/a")) != first

    def test_a_source_names_no_folder(self) -> None:
        assert public_source(replace(SPEC, source="file:/home/me/vit.pth")) == "file:vit.pth"
        assert public_source(SPEC) == "timm:test_vit"


class TestRemembered:
    def test_a_file_is_read_once_per_path_size_and_time(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "weights.bin"
        path.write_bytes(b"one")
        os.utime(path, ns=(5, 5))
        first = known(tmp_path).sha256(path)
        assert first == "sha256:7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"
        reads: list[object] = []
        digest = remembered.hashlib.file_digest
        monkeypatch.setattr(
            remembered.hashlib, "file_digest", lambda *a: reads.append(a) or digest(*a)
        )
        assert known(tmp_path).sha256(path) == first
        assert reads == []
        path.write_bytes(b"two")
        assert known(tmp_path).sha256(path) != first
        assert len(reads) == 1
        assert known(tmp_path).sha256(tmp_path / "none") is None
        assert known(tmp_path).sha256(tmp_path) is None

    def test_a_damaged_memory_is_forgotten(self, tmp_path: Path) -> None:
        for text in ("{", "[]", ""):
            (tmp_path / "files.json").write_text(text)
            assert known(tmp_path).get("a", lambda: 1) == 1
        assert known(tmp_path).get("a", lambda: 2) == 1

    def test_a_folder_is_read_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder = tmp_path / "images"
        folder.mkdir()
        for number in range(4):
            Image.new("RGB", (4, 4), (number, 0, 0)).save(folder / f"{number}.png")
        memory = Remembered(tmp_path / "data.json")
        first = DataSet(str(folder), None, 3, memory).facts
        assert (first["total"], first["taken"], first["kind"]) == (4, 3, "folder")
        opened: list[str] = []
        original = remembered.open_data

        def watched(text: str, **options: Any) -> Any:
            opened.append(text)
            return original(text, **options)

        monkeypatch.setattr(remembered, "open_data", watched)
        again = DataSet(str(folder), None, 3, Remembered(tmp_path / "data.json"))
        assert again.facts == first
        assert opened == []
        assert again.source().fingerprint == first["fingerprint"]
        assert len(opened) == 1
        assert DataSet(str(folder), None, 2, memory).facts["taken"] == 2
        Image.new("RGB", (4, 4), (9, 9, 9)).save(folder / "0.png")
        changed = DataSet(str(folder), None, 3, memory).facts
        assert changed["fingerprint"] != first["fingerprint"]

    @pytest.mark.parametrize("name", ["photos", "digits"])
    def test_built_in_data(self, tmp_path: Path, name: str) -> None:
        memory = Remembered(tmp_path / "data.json")
        first = DataSet(name, None, 4, memory)
        again = DataSet(name, None, 4, Remembered(tmp_path / "data.json"))
        assert again.facts == first.facts == first.facts | {"name": name, "taken": 4}
        assert again.facts["fingerprint"] == first.source().fingerprint


def card_of(model: LoadedModel, spec: ModelSpec = SPEC, **changes: Any) -> ModelCard:
    images = InMemory(pictures(3), labels=[0, 1, 2])
    found = judged(spec, images, model)
    common = common_settings(found.model, images, Settings(), found.labels)
    return make_card(spec, found, common, "0" * 64).model_copy(update=changes)


class TestCard:
    def test_of_a_vit(self) -> None:
        model = ready()
        card = card_of(model, replace(SPEC, group="g", tags=("a",), provenance={"teacher": "t"}))
        assert (card.model, card.source, card.group, card.tags) == ("vit", SPEC.source, "g", ("a",))
        assert card.provenance == {"teacher": "t"}
        assert card.position == "absolute"
        assert card.signals == ("absolute",)
        assert card.unscaled is None
        grid = model.anatomy.patches.grid
        assert card.grids == ((grid.rows, grid.cols),) * len(model.anatomy.attn_in)
        assert card.params == sum(p.numel() for p in model.module.parameters())
        assert card.head
        assert card.judged
        assert card.common["labels"]["map"]["2"] == 2
        assert ModelCard.from_json(card.to_json()) == card

    def test_macs_are_those_of_its_products(self) -> None:
        """Counted by hand over one image of the tiny ViT, attention included."""
        model = ready()
        module: Any = model.module
        width, grid = module.embed_dim, model.anatomy.patches.grid.tokens
        tokens, patch = grid + 1, module.patch_embed.proj.kernel_size
        expected = grid * 3 * patch[0] * patch[1] * width
        for block in module.blocks:
            hidden = block.mlp.fc1.out_features
            expected += tokens * width * (3 * width + width + 2 * hidden)
            expected += 2 * tokens * tokens * width
        expected += width * module.head.out_features
        assert card_of(model).macs == expected

    def test_without_a_signal_or_a_head(self) -> None:
        model = ready()
        bare = replace(
            model, predict=None, classes=None, anatomy=replace(model.anatomy, positions=())
        )
        card = card_of(bare)
        assert card.position == "none"
        assert card.signals == ()
        assert card.unscaled == "the model has no positional signal, so there is nothing to scale"
        assert not card.head
        assert card.unjudged == "the model has no head to predict with, and no readout"

    def test_images_without_labels_are_not_judged(self) -> None:
        found = judged(SPEC, Photos(), ready())
        assert found.labels is None
        assert found.reason is not None
        assert found.reason.startswith("'photos' has no labels, which accuracy and FS need")
        assert found.model.predict is not None

    def test_keys_of_passes_follow_from_the_card(self) -> None:
        model, images = ready(), InMemory(pictures(3), labels=[0, 1, 2])
        found = judged(SPEC, images, model)
        common = common_settings(found.model, images, Settings(), found.labels)
        card = ModelCard.from_json(card_of(model).to_json())
        task = Task(CLEAN, ssdc=True, top1=True)
        ours = make_passes([task], Settings(), card.common)
        assert ours[0].key == make_passes([task], Settings(), common)[0].key


class TestStored:
    def test_what_was_saved_is_found(self, tmp_path: Path) -> None:
        cards, card = Cards(tmp_path), card_of(ready(), hub=None, source="file:vit.pth")
        path = cards.save(card)
        assert cards.load("vit", card.key) == card
        assert cards.load("vit", "1" * 64) is None
        path.write_bytes(path.read_bytes()[:-9])
        assert cards.load("vit", card.key) is None

    def test_hub_weights_are_known_by_their_commit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        commit, cards, card = "a" * 40, Cards(tmp_path), card_of(ready())
        common = card.common | {"revision": commit, "weights": "sha256:1"}

        def stored(asked: str | None, source: str = "timm:test_vit") -> bool:
            own = card.model_copy(
                update={"hub": ("timm/vit", asked), "common": common, "source": source}
            )
            cards.save(own)
            return cards.load("vit", card.key) is not None

        assert not stored(None)
        refs = tmp_path / "hub/models--timm--vit/refs"
        refs.mkdir(parents=True)
        (refs / "main").write_text(commit)
        assert stored(None)
        assert not stored("v1")
        (refs / "v1").write_text(commit)
        assert stored("v1")
        (refs / "main").write_text("b" * 40)
        assert not stored(None)
        assert stored(commit)
        assert not stored("c" * 40)

    def test_weights_of_unknown_origin_are_loaded_again(self, tmp_path: Path) -> None:
        cards, card = Cards(tmp_path), card_of(ready(), hub=None)
        common = card.common | {"revision": None, "weights": "sha256:1"}
        cards.save(card.model_copy(update={"common": common}))
        assert cards.load("vit", card.key) is None
        cards.save(card.model_copy(update={"common": common | {"weights": "random:0"}}))
        assert cards.load("vit", card.key) is not None
