"""Conditions have one text, and a pass has one key: that of everything that can change it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probe import plan
from probe.data.preprocess import describe
from probe.errors import UsageError
from probe.plan import (
    REPORTED,
    ReportChoices,
    Settings,
    make_passes,
    pass_settings,
    report_tasks,
    ssdc_conditions,
    versions,
)
from probe.types import (
    Condition,
    Identity,
    Permutation,
    PermutationMode,
    PositionKind,
    Preprocess,
    Task,
)

PREPROCESS = Preprocess(
    (224, 224), ("short", 256), (224, 224), "bicubic", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5), "half"
)
BASE: dict[str, Any] = {
    "identity": Identity("timm:vit", None, "sha256:00"),
    "family": "timm_vit",
    "options": {},
    "image_size": (224, 224),
    "preprocess": describe(PREPROCESS),
    "data": {"name": "photos", "fingerprint": "blake2b:00", "total": 48, "taken": 48},
    "device": "cpu",
    "settings": Settings(),
    "groups": 20,
}
CLEAN = Condition()


def key(condition: Condition = CLEAN, settings: Settings = Settings(), **changes: Any) -> str:  # noqa: B008
    common = pass_settings(**(BASE | {"settings": settings} | changes))
    (one,) = make_passes([Task(condition)], settings, common)
    return one.key


@pytest.mark.parametrize(
    ("condition", "text"),
    [
        (Condition(), "clean"),
        (Condition(Permutation("image", 0)), "rpi(mode=image,seed=0,draw=0)"),
        (Condition(Permutation("shared", 7, 2)), "rpi(mode=shared,seed=7,draw=2)"),
        (Condition(alpha=0.5), "alpha=0.5"),
        (Condition(alpha=0), "alpha=0.0"),
        (Condition(alpha=2), "alpha=2.0"),
        (Condition(alpha=1), "clean"),
        (Condition(alpha=0.1, signal="rotary"), "alpha=0.1,signal=rotary"),
        (Condition(corruption="jpeg(quality=5)"), "jpeg(quality=5)"),
        (
            Condition(Permutation("image", 0), 0.5, "jpeg(quality=5)"),
            "rpi(mode=image,seed=0,draw=0)+alpha=0.5+jpeg(quality=5)",
        ),
    ],
)
def test_canonical_text(condition: Condition, text: str) -> None:
    assert str(condition) == text


conditions = st.builds(
    Condition,
    st.none()
    | st.builds(
        Permutation,
        st.sampled_from(get_args(PermutationMode)),
        st.integers(0, 2**32),
        st.integers(0, 9),
    ),
    st.sampled_from([0, 0.0, 0.25, 1, 1.0, 2, 2.0]) | st.floats(0, 2),
    st.sampled_from([None, "jpeg(quality=5)", "gaussian_blur(sigma=2.5,kernel=5)"]),
    st.sampled_from([None, *get_args(PositionKind)]),
)


@given(conditions, conditions)
def test_equal_conditions_have_equal_texts_and_others_do_not(
    one: Condition, other: Condition
) -> None:
    assert str(replace(one)) == str(one)
    if one == other:
        assert str(one) == str(other)
    elif 1 not in (one.alpha, other.alpha):  # at alpha 1 the signal says nothing
        assert str(one) != str(other)


def test_conditions_of_the_main_job() -> None:
    assert ssdc_conditions("off", 1, 5) == (CLEAN,)
    assert ssdc_conditions("image", 2, 5) == (
        CLEAN,
        Condition(Permutation("image", 5, 0)),
        Condition(Permutation("image", 5, 1)),
    )
    assert [str(c) for c in ssdc_conditions("batch", 1, 0)] == [
        "clean", "rpi(mode=batch,seed=0,draw=0)"
    ]  # fmt: skip
    for draws in (0, -3):
        with pytest.raises(UsageError) as error:
            ssdc_conditions("image", draws, 0)
        assert str(error.value) == (f"--rpi-draws must be at least 1, got {draws}")
    mode: Any
    for mode, near in (("images", " Did you mean image?"), (None, "")):
        with pytest.raises(UsageError) as error:
            ssdc_conditions(mode, 1, 0)
        assert str(error.value) == (f"rpi must be image, shared, batch or off; got '{mode}'.{near}")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"batch_size": 0}, "--batch-size must be at least 1, got 0"),
        ({"batch_size": -4}, "--batch-size must be at least 1, got -4"),
        ({"workers": -1}, "--workers must be 0 or more, got -1"),
        ({"seed": -1}, "--seed must lie between 0 and 2**63 - 1, got -1"),
        ({"seed": 2**63}, "--seed must lie between 0 and 2**63 - 1, got 9223372036854775808"),
        ({"site": "norm"}, "site must be one of attn_in, block_out; got 'norm'."),
        ({"distance": "L1"}, "distance must be one of l1, l2; got 'L1'. Did you mean l1?"),
        ({"average": None}, "average must be one of similarity, image; got 'None'."),
        (
            {"dtype": "int8"},
            "dtype must be one of float32, bfloat16, float16, float64; got 'int8'.",
        ),
    ],
)
def test_settings_that_cannot_be_run(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        Settings(**changes)
    assert str(error.value) == message


NUMBERS: dict[str, dict[str, Any]] = {
    "weights": {"identity": Identity("timm:vit", None, "sha256:01")},
    "configuration": {"identity": Identity("timm:vit", None, "sha256:00", "sha256:02")},
    "revision": {"identity": Identity("timm:vit", "abc", "sha256:00")},
    "resolved": {"identity": Identity("timm:vit2", None, "sha256:00")},
    "family": {"family": "timm_eva"},
    "options": {"options": {"class_token": False}},
    "image size": {"image_size": (224, 448)},
    "resize": {"preprocess": describe(replace(PREPROCESS, resize=("short", 224)))},
    "squash": {
        "preprocess": describe(replace(PREPROCESS, resize=("squash", (224, 224)), crop=None))
    },
    "interpolation": {"preprocess": describe(replace(PREPROCESS, interpolation="bilinear"))},
    "mean": {"preprocess": describe(replace(PREPROCESS, mean=(0.5, 0.5, 0.4)))},
    "std": {"preprocess": describe(replace(PREPROCESS, std=(0.5, 0.5, 0.4)))},
    "fingerprint": {"data": BASE["data"] | {"fingerprint": "blake2b:01"}},
    "taken": {"data": BASE["data"] | {"taken": 24}},
    "device": {"device": "cuda"},
    "groups": {"groups": 5},
    "site": {"settings": Settings(site="block_out")},
    "distance": {"settings": Settings(distance="l2")},
    "average": {"settings": Settings(average="image")},
    "seed": {"settings": Settings(seed=1)},
    "dtype": {"settings": Settings(dtype="bfloat16")},
    "rpi": {"condition": Condition(Permutation("image", 0))},
    "draw": {"condition": Condition(Permutation("image", 0, 1))},
    "rpi seed": {"condition": Condition(Permutation("image", 1))},
    "mode": {"condition": Condition(Permutation("shared", 0))},
    "alpha": {"condition": Condition(alpha=0.5)},
    "signal": {"condition": Condition(alpha=0.5, signal="absolute")},
    "corruption": {"condition": Condition(corruption="jpeg(quality=5)")},
    "batch": {"condition": Condition(Permutation("batch", 0))},
    "batch of 8": {
        "condition": Condition(Permutation("batch", 0)),
        "settings": Settings(batch_size=8),
    },
}


def test_every_number_that_changes_a_pass_changes_its_key() -> None:
    keys = {name: key(**changes) for name, changes in NUMBERS.items()} | {"base": key()}
    assert len(set(keys.values())) == len(NUMBERS) + 1


def test_versions_and_code_change_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    found = dict(versions())
    assert set(found) == {
        "probe", "code", "torch", "torchvision", "timm", "transformers", "numpy", "scipy", "pillow"
    }  # fmt: skip
    before = key()
    for name in ("code", "timm"):
        monkeypatch.setattr(plan, "versions", lambda name=name: found | {name: "other"})
        assert key() != before
    monkeypatch.setattr(plan, "versions", lambda: found)
    assert key() == before


def test_the_code_that_is_hashed_exists() -> None:
    root = plan.files("probe")
    assert [
        name for name in plan.DIGESTED if not (root / name).is_file() and not (root / name).is_dir()
    ] == []


@pytest.mark.parametrize("mode", ["image", "shared"])
@pytest.mark.parametrize("changes", [{"batch_size": 7}, {"workers": 3}])
def test_what_changes_no_number_changes_no_key(mode: PermutationMode, changes: Any) -> None:
    for condition in (CLEAN, Condition(Permutation(mode, 0))):
        assert key(condition, Settings(**changes)) == key(condition)


def test_batch_mode_records_its_batch_size() -> None:
    batch = Condition(Permutation("batch", 0))
    passes = make_passes([Task(CLEAN), Task(batch)], Settings(batch_size=8), pass_settings(**BASE))
    assert [p.settings.get("batch_size") for p in passes] == [None, 8]
    assert key(batch, Settings(workers=2)) == key(batch)


def test_keys_do_not_depend_on_the_order_of_options() -> None:
    assert key(options={"a": 1, "b": 2}) == key(options={"b": 2, "a": 1})


def test_a_pass_carries_all_that_names_it() -> None:
    (one,) = make_passes([Task(Condition(alpha=0.5))], Settings(), pass_settings(**BASE))
    assert one.model == "timm:vit"
    assert len(one.key) == 64
    assert one.settings == {
        "resolved": "timm:vit",
        "revision": None,
        "weights": "sha256:00",
        "configuration": "",
        "family": "timm_vit",
        "options": {},
        "image_size": [224, 224],
        "preprocess": {
            "size": [224, 224],
            "resize": ["short", 256],
            "crop": [224, 224],
            "interpolation": "bicubic",
            "mean": [0.5, 0.5, 0.5],
            "std": [0.5, 0.5, 0.5],
            "source": "half",
        },
        "data": BASE["data"],
        "site": "attn_in",
        "distance": "l1",
        "average": "similarity",
        "seed": 0,
        "dtype": "float32",
        "device": "cpu",
        "interval": "95 %, delete-a-group jackknife over images, group = position mod 20",
        "versions": versions(),
        "condition": "alpha=0.5",
        "measures": {"ssdc": True, "top1": False, "last_layer": None},
        "notes": [],
    }


def test_how_the_data_was_typed_is_no_part_of_the_key() -> None:
    data = dict(BASE["data"])
    assert key(data=data | {"name": "./photos"}) == key()
    assert key(data=data | {"fingerprint": "blake2b:01"}) != key()


CHOICES = ReportChoices(
    corruptions=("jpeg(quality=5)", "true_gaussian_blur(sigma=2.5)"),
    dosed=("jpeg(quality=5)",),
    alphas=(1.0, 0.5),
)
RPI = "rpi(mode=image,seed=0,draw=0)"


@pytest.mark.parametrize(
    ("measures", "model", "expected"),
    [
        (
            set(REPORTED), (True, True, True),
            ["clean:st", f"{RPI}:s", "jpeg(quality=5):t", "true_gaussian_blur(sigma=2.5):t",
             f"{RPI}+alpha=0.5:s", "alpha=0.5:t", "alpha=0.5+jpeg(quality=5):t"],
        ),
        (
            set(REPORTED), (True, False, True),
            ["clean:st", f"{RPI}:s", "jpeg(quality=5):t", "true_gaussian_blur(sigma=2.5):t",
             f"{RPI}+alpha=0.5:s"],
        ),
        (set(REPORTED), (False, False, True), ["clean:s", f"{RPI}:s", f"{RPI}+alpha=0.5:s"]),
        (set(REPORTED), (False, False, False), ["clean:s", f"{RPI}:s"]),
        ({"ssdc"}, (True, True, True), ["clean:s", f"{RPI}:s"]),
        (
            {"agreement"}, (True, False, True),
            ["clean:t", "jpeg(quality=5):t", "true_gaussian_blur(sigma=2.5):t"],
        ),
        ({"fragility"}, (False, False, True), []),
        (
            {"alpha"}, (True, True, True),
            ["clean:st", f"{RPI}:s", "jpeg(quality=5):t", f"{RPI}+alpha=0.5:s", "alpha=0.5:t",
             "alpha=0.5+jpeg(quality=5):t"],
        ),
    ],
)  # fmt: skip
def test_tasks_of_a_report(
    measures: set[str], model: tuple[bool, bool, bool], expected: list[str]
) -> None:
    head, judged, scaled = model
    chosen = replace(CHOICES, measures=frozenset(measures))
    tasks = report_tasks(chosen, head=head, judged=judged, scaled=scaled)
    assert [f"{t.condition}:{'s' * t.ssdc}{'t' * t.top1}" for t in tasks] == expected
    assert len(make_passes(tasks, Settings(), {"resolved": "m"})) == len(expected)
