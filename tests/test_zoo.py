"""The zoo file, how names resolve, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from probe.cli.zoo import zoo_app
from probe.errors import UnknownModel, UsageError, ZooError
from probe.zoo import Zoo, load_zoo

SMALL = """\
schema: 1
models:
  mine:
    source: file:weights/mine.safetensors
    arch: vit_tiny_patch16_224
    options: {img_size: 32, class_token: false}
    preprocess: half
    tags: [home]
    group: recipe
  deit_small:
    source: timm:deit_small_patch16_224
    tags: [home]
suites:
  both: [mine, home, deit_tiny]
"""


@pytest.fixture(scope="module")
def builtin() -> Zoo:
    return load_zoo()


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "zoo.yaml"
    path.write_text(SMALL)
    return path


def test_builtin_covers_the_field(builtin: Zoo) -> None:
    published = [s for s in builtin.models.values() if not s.source.startswith("package:")]
    assert len(published) >= 80
    assert len({spec.source for spec in published}) == len(published)
    kinds = {spec.position for spec in builtin.models.values()}
    known = {"absolute", "sinusoidal", "relative_bias", "rotary", "rotary+absolute", "none"}
    assert kinds == known
    sources = {spec.source.partition(":")[0] for spec in builtin.models.values()}
    assert sources == {"timm", "hf", "package"}
    for spec in builtin.models.values():
        assert {"pretraining", "licence"} <= set(spec.provenance), spec.name
        assert spec.group, spec.name
        if not spec.source.startswith("package:"):  # what we trained has no page
            assert spec.provenance["source"].startswith("https://"), spec.name


def test_naver_models_share_one_recipe(builtin: Zoo) -> None:
    found = {spec.name: spec.position for spec in builtin.select(group="naver_in1k")}
    assert len(found) == 8
    assert found["vit_small_rope"] == found["vit_base_rope_mixed"] == "rotary"
    assert found["vit_small_rope_ape"] == found["vit_base_rope_mixed_ape"] == "rotary+absolute"


def test_names_that_people_type(builtin: Zoo) -> None:
    assert builtin["deit_small"].source == "timm:deit_small_patch16_224.fb_in1k"
    assert builtin["deit_small"].provenance["expected"] == pytest.approx(0.79844)
    for name in ("deit_tiny", "deit_base", "vit_base", "swin_tiny", "dinov2_small"):
        assert builtin[name].name == name


def test_timm_names_and_licences_are_timms(builtin: Zoo) -> None:
    import timm

    for spec in builtin.models.values():
        kind, _, name = spec.source.partition(":")
        if kind == "timm":
            config = timm.get_pretrained_cfg(name)
            assert config is not None, name
            page = spec.provenance["source"]
            if page.startswith("https://huggingface.co/"):
                assert page == f"https://huggingface.co/{config.hf_hub_id}"
            assert spec.provenance["licence"] == config.license, name


# What the parts of timm's tags say a checkpoint has learned from, in that order.
DATASETS = {
    "in1k": "ImageNet-1k", "in21k": "ImageNet-21k", "in22k": "ImageNet-21k", "dino": "ImageNet-1k",
    "mae": "ImageNet-1k", "lvd142m": "LVD-142M", "lvd1689m": "LVD-1689M", "webli": "WebLI",
    "openai": "OpenAI's 400 M", "laion2b": "LAION-2B", "datacompxl": "DataComp-XL",
}  # fmt: skip


def test_pretraining_and_group_are_what_timms_tag_says(builtin: Zoo) -> None:
    anywhere = re.compile("|".join(sorted(set(DATASETS.values()), key=len, reverse=True)))
    tags: dict[str, set[str]] = {}
    for spec in builtin.models.values():
        kind, _, name = spec.source.partition(":")
        if kind == "timm":
            tag = name.partition(".")[2]
            named = [DATASETS[part] for part in tag.split("_") if part in DATASETS]
            assert anywhere.findall(spec.provenance["pretraining"]) == named != [], spec.name
            assert ("fine-tuned" in spec.provenance["pretraining"]) == ("_ft_" in tag), spec.name
            tags.setdefault(str(spec.group), set()).add(tag)
    # Models of a group have learned from the same data in the same way.
    assert {group: found for group, found in tags.items() if len(found) > 1} == {}


def test_a_users_file_is_laid_over_the_builtin(small: Path) -> None:
    zoo = load_zoo(small)
    assert zoo["deit_small"].source == "timm:deit_small_patch16_224"
    assert zoo["deit_small"].provenance == {}
    assert zoo["deit_tiny"].source == "timm:deit_tiny_patch16_224.fb_in1k"
    assert [spec.name for spec in zoo.suite("both")] == ["mine", "deit_small", "deit_tiny"]
    assert len(zoo.suite("naver_rotary")) == 8


def test_file_sources_are_relative_to_the_zoo_file(small: Path) -> None:
    spec = load_zoo(small)["mine"]
    assert spec.source == f"file:{small.parent / 'weights' / 'mine.safetensors'}"
    assert spec.arch == "vit_tiny_patch16_224"
    assert spec.options == {"img_size": 32, "class_token": False}
    assert spec.preprocess == "half"
    assert spec.tags == ("home",)


def test_preprocess_file_and_package_source(tmp_path: Path) -> None:
    path = tmp_path / "zoo.yaml"
    path.write_text(
        "schema: 1\nmodels: {a: {source: 'package:zoo/a.safetensors', preprocess: p.json}}\n"
    )
    spec = load_zoo(path)["a"]
    assert spec.source == "package:zoo/a.safetensors"
    assert spec.preprocess == str(tmp_path / "p.json")


def test_preprocessing_stated_in_the_entry(tmp_path: Path) -> None:
    path = tmp_path / "zoo.yaml"
    fields = (
        "{resize: [short, 36], crop: [32, 32], interpolation: bicubic, mean: [0.5, 0.5, 0.5], "
        "std: [0.25, 0.25, 0.25]}"
    )
    path.write_text(f"schema: 1\nmodels:\n  a:\n    source: timm:b\n    preprocess: {fields}\n")
    stated = load_zoo(path)["a"].preprocess
    assert isinstance(stated, dict)
    assert stated["resize"] == ["short", 36]
    for wrong, message in (
        (fields.replace("crop", "corp"), "unknown field 'corp'. Did you mean crop?"),
        (fields.replace("36", "30"), "the crop is larger than the resized short side"),
        ("7", "must be imagenet, half, a file, or the fields of one"),
    ):
        path.write_text(f"schema: 1\nmodels:\n  a:\n    source: timm:b\n    preprocess: {wrong}\n")
        with pytest.raises(ZooError) as caught:
            load_zoo(path)
        assert str(caught.value) == f"{path}:5: 'models.a.preprocess': {message}"


def test_yaml_1_2_scalars(tmp_path: Path) -> None:
    path = tmp_path / "zoo.yaml"
    path.write_text(
        "schema: 1\nmodels: {a: {source: hf:a/b, options: {x: 1e-1, y: 010, z: no, w: true}}}\n"
    )
    options = load_zoo(path)["a"].options
    assert options == {"x": 0.1, "y": 10, "z": "no", "w": True}
    assert [type(value) for value in options.values()] == [float, int, str, bool]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("schema: 1\nmodles: {}\n", 2, "unknown key 'modles'. Did you mean models?"),
        (
            "schema: 1\nmodels:\n  a:\n    source: hf:x\n    optoins: {}\n",
            5,
            "unknown key 'optoins'. Did you mean options",
        ),
        (
            "schema: 1\nmodels:\n  a:\n    source: hf:x\n    provenance:\n      license: mit\n",
            6,
            "unknown key 'license'. Did you mean licence?",
        ),
        ("models: {}\n", 1, "'schema' is missing"),
        ("schema: 2\n", 1, "'schema': input should be less than or equal to 1, got 2"),
        ("schema: 1\nmodels:\n  a:\n    tags: [b]\n", 3, "'models.a.source' is missing"),
        (
            "schema: 1\nmodels:\n  a:\n    source: hf:x\n    revision: 123\n",
            5,
            "'models.a.revision': input should be a valid string, got 123; put quotes around it",
        ),
        (
            "schema: 1\nmodels:\n  a:\n    source: hf:x\n    tags:\n      - ok\n      - 7\n",
            7,
            "'models.a.tags.1': input should be a valid string, got 7",
        ),
        (
            "schema: 1\nmodels:\n  a:\n    source: hf:x\n    provenance:\n      expected: 79.9\n",
            6,
            "'models.a.provenance.expected': input should be less than or equal to 1, got 79.9",
        ),
        (
            "schema: 1\nmodels:\n  a:\n    source: deit_small\n",
            4,
            "source 'deit_small' must be one of timm:..., hf:..., file:..., package:...",
        ),
        ("schema: 1\nmodels:\n  a:\n    source: 'hf:'\n", 4, "source 'hf:' must be one of"),
        (
            "schema: 1\nmodels:\n  a:\n    source: hf:x\n    arch: vit\n",
            5,
            "'arch' is for a state-dict file",
        ),
        (
            "schema: 1\nmodels:\n  a:\n    source: hf:x\n    anatomy:\n      blocks:\n"
            "        - patern: b\n",
            7,
            "unknown key 'patern'. Did you mean pattern",
        ),
        (
            "schema: 1\nmodels:\n  a:\n    source: hf:x\n    anatomy:\n      image_size: [8, 8]\n"
            "      patches: {module: p, grid: [2, 2], layout: NCHW}\n      blocks:\n"
            "        - {pattern: b, attn_in: '', grid: [2, 2], layout: NLC}\n",
            9,
            "add side: input to read what it takes",
        ),
        (
            "schema: 1\nmodels:\n  a:\n    source: import:net\n",
            4,
            "source 'import:net' must be import:MODULE:NAME, as in import:mynet:build",
        ),
        (
            "schema: 1\nmodels:\n  a:\n    source: hf:x\n    weights: w.safetensors\n",
            5,
            "'weights' is for an import: source; hf:x names its own",
        ),
        *(
            (
                f"schema: 1\nmodels:\n  a:\n    source: {source}\n    revision: v2\n",
                5,
                f"'revision' is for a hub's checkpoint; {source} has none, so leave it out",
            )
            for source in ("file:a.pth", "package:a.safetensors", "import:net:build")
        ),
        (
            "schema: 1\nmodels:\n  a:\n    source: hf:x\n    anatomy: {patches: p}\n",
            5,
            "'models.a.anatomy.patches': input should be a valid dictionary",
        ),
        (
            "schema: 1\nmodels:\n  a:\n    source: hf:x\n    position: rotary+absolut\n",
            5,
            "unknown position 'absolut'. Did you mean absolute?",
        ),
        ("schema: 1\nmodels:\n  a:b:\n    source: hf:x\n", 3, "'a:b' is no model name"),
        (
            "schema: 1\nsuites:\n  s:\n    - deit_tiny\n    - deit_smal\n",
            5,
            "suite 's': 'deit_smal' is neither a model nor a tag. Did you mean deit_small",
        ),
        (
            "schema: 1\nmodels:\n  a:\n    source: hf:x\n    tags: [deit_small]\n",
            5,
            "tag 'deit_small' is a model's name",
        ),
        ("schema: 1\nmodels: {}\nmodels: {}\n", 3, 'found duplicate key "models"'),
        (
            "schema: 1\nmodels:\n  a: !!python/object:os.system {}\n",
            3,
            "YAML tags are not allowed",
        ),
        ("schema: 1\nmodels:\n  a: &x {source: hf:x}\n  b: *x\n", 3, "anchors and aliases"),
        ("schema: 1\nmodels: {a: [}\n", 2, ""),
        ("- a\n", 1, "'the file'"),
        ("", 1, "'the file'"),
    ],
)
def test_faults_name_their_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ZooError) as caught:
        load_zoo(path)
    said = str(caught.value)
    assert said.startswith(f"{path}:{line}: ")
    assert message in said
    assert "\n" not in said
    assert len(said) > len(f"{path}:{line}: ")


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ZooError, match=r"cannot read the zoo file .*missing.yaml: No such file"):
        load_zoo(tmp_path / "missing.yaml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ZooError, match="is not UTF-8 text"):
        load_zoo(tmp_path / "binary")


def test_resolve_kinds(builtin: Zoo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert builtin.resolve("deit_small") is builtin["deit_small"]
    assert builtin.resolve("timm:vit_tiny_patch16_224").source == "timm:vit_tiny_patch16_224"
    assert builtin.resolve("hf:me/mine").source == "hf:me/mine"
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deit_small").mkdir()
    (tmp_path / "w.pth").touch()
    assert builtin.resolve("deit_small").source.startswith("timm:")
    assert builtin.resolve("./deit_small").source == f"file:{tmp_path / 'deit_small'}"
    spec = builtin.resolve("w.pth", arch="vit_tiny_patch16_224")
    assert (spec.name, spec.source) == ("w.pth", f"file:{tmp_path / 'w.pth'}")
    assert spec.arch == "vit_tiny_patch16_224"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("deit_smal", ["unknown model 'deit_smal'.", "Did you mean deit_small", "timm:deit_smal"]),
        ("vit_base_patch16_224", ["A timm name is written timm:vit_base_patch16_224"]),
        ("me/mine", ["No file or folder is there", "hf:me/mine"]),
        ("timm:", ["unknown model 'timm:'"]),
        ("file:/tmp/x", ["Write the path alone"]),
        ("", ["unknown model ''"]),
    ],
)
def test_unknown_models(builtin: Zoo, text: str, parts: list[str]) -> None:
    with pytest.raises(UnknownModel) as caught:
        builtin.resolve(text)
    for part in [*parts, "`probe zoo list`"]:
        assert part in str(caught.value)
    assert caught.value.exit_code == 2


def test_arch_needs_a_file(builtin: Zoo) -> None:
    with pytest.raises(UsageError, match="--arch names the architecture of a state-dict file"):
        builtin.resolve("deit_small", arch="vit_tiny_patch16_224")


def test_select(builtin: Zoo) -> None:
    names = {spec.name for spec in builtin.select(tags=["distilled", "registers"])}
    assert "dinov2_small_reg4" in names
    assert "deit_tiny_distilled" not in names
    chosen = builtin.select(names=["swin_tiny", "deit_tiny"], tags=["supervised"])
    assert [spec.name for spec in chosen] == ["swin_tiny", "deit_tiny"]
    assert len(builtin.select()) == len(builtin.models)
    with pytest.raises(
        UsageError, match=r"no model has the tag 'registrs'. Did you mean registers"
    ):
        builtin.select(tags=["registrs"])
    with pytest.raises(
        UsageError, match=r"no model has the group 'deit_in1'. Did you mean deit_in1k"
    ):
        builtin.select(group="deit_in1")
    with pytest.raises(UsageError, match=r"no suite 'overvew' in the zoo. Did you mean overview"):
        builtin.suite("overvew")


def test_every_builtin_suite_has_models(builtin: Zoo) -> None:
    for name in builtin.suites:
        members = builtin.suite(name)
        assert members
        assert len({spec.name for spec in members}) == len(members)


def test_cli_list_json_and_nothing_else(small: Path) -> None:
    done = CliRunner().invoke(zoo_app, ["list", "--zoo", str(small), "--tag", "home", "--json"])
    assert done.exit_code == 0
    told = json.loads(done.stdout)
    assert told["schema"] == 1
    # Laid over the built-in zoo, `deit_small` keeps its place in the list.
    assert [model["name"] for model in told["models"]] == ["deit_small", "mine"]
    assert told["models"][1]["options"] == {"img_size": 32, "class_token": False}


@pytest.mark.parametrize("width", [80, 120])
def test_cli_list_fits_the_terminal(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    done = CliRunner().invoke(zoo_app, ["list", "--group", "naver_in1k"])
    assert done.exit_code == 0
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= width
    assert "8 models" in lines[-1]
    whole = re.sub(r"\s+", " ", done.stdout)
    for word in ("vit_small_rope_mixed_ape", "rotary+absolute", "naver_in1k", "apache-2.0"):
        assert word in whole
    assert "…" not in whole


def test_cli_show() -> None:
    done = CliRunner().invoke(zoo_app, ["show", "deit_tiny_distilled"])
    assert done.exit_code == 0
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert rows["source"] == ["timm:deit_tiny_distilled_patch16_224.fb_in1k"]
    assert rows["provenance.teacher"] == ["RegNetY-16GF"]
    assert rows["provenance.expected"] == ["0.745"]
    assert rows["arch"] == ["-"]
    told = json.loads(CliRunner().invoke(zoo_app, ["show", "deit_small", "--json"]).stdout)
    assert told["model"]["provenance"]["licence"] == "apache-2.0"


def test_cli_show_unknown_name() -> None:
    done = CliRunner().invoke(zoo_app, ["show", "swin_tinny"])
    assert isinstance(done.exception, UnknownModel)
    assert str(done.exception).startswith(
        "no model 'swin_tinny' in the zoo. Did you mean swin_tiny"
    )
