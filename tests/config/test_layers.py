from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.config.layers import Effective, Layer, resolve
from llmrun.config.schema import BY_NAME, GROUPS, KV_TYPE, RESERVED_ENV, SETTINGS, env_name, suggest_setting
from llmrun.config.views import ContextSettings, HardwareSettings, OutputSettings, SamplingSettings
from llmrun.errors import UsageError

VIEWS: dict[str, type] = {
    "hardware": HardwareSettings,
    "context": ContextSettings,
    "sampling": SamplingSettings,
    "output": OutputSettings,
}


def user(values: dict[str, object]) -> Layer:
    return Layer("/c/config.yaml", values, "/c/config.yaml", {name: at for at, name in enumerate(values, 1)})


def profile(values: dict[str, object]) -> Layer:
    return Layer("profile small", values, "/p/small.yaml")


def test_nothing_given_is_all_built_in() -> None:
    effective = resolve()
    for setting in SETTINGS:
        assert effective.values[setting.name] == setting.default
        assert effective.source(setting.name) == "built-in"


def test_the_order_of_the_layers_for_a_sampling_setting() -> None:
    layers: dict[str, Any] = {
        "model_file": {"general.sampling.temp": 0.1},
        "catalogue_sampling": {"temperature": 0.2},
        "user_file": user({"temperature": 0.3}),
        "profile": profile({"temperature": 0.4}),
        "env": {"LLMRUN_TEMPERATURE": "0.5"},
        "flags": {"temperature": 0.6},
    }
    sources = [
        "model file",
        "catalogue",
        "/c/config.yaml",
        "profile small",
        "LLMRUN_TEMPERATURE",
        "flag --temp",
    ]
    given_layers: dict[str, Any] = {}
    for at, (name, layer) in enumerate(layers.items()):
        given_layers[name] = layer
        effective = resolve(**given_layers)
        assert effective.sampling.temperature == pytest.approx((at + 1) / 10)
        assert effective.source("temperature") == sources[at]


def test_values_of_the_catalogue_are_of_the_sampler() -> None:
    with pytest.raises(UsageError):
        resolve(catalogue_sampling={"n_ctx": 4096})


def test_a_flag_that_was_not_given_sets_nothing() -> None:
    assert resolve(flags={"n_ctx": None, "top_k": 7}).source("n_ctx") == "built-in"


def test_an_empty_variable_sets_nothing_and_foreign_ones_do_not_matter() -> None:
    env = {"LLMRUN_CTX": "", "PATH": "/bin", **dict.fromkeys(RESERVED_ENV, "1")}
    assert resolve(env=env) == resolve()


def test_sources_name_flag_variable_and_file() -> None:
    effective = resolve(flags={"n_ctx": 64, "model": "m.gguf"}, env={"LLMRUN_THREADS": "2"})
    assert effective.source("n_ctx") == "flag -c"
    assert effective.source("model") == "command line"
    assert effective.source("n_threads") == "LLMRUN_THREADS"
    assert effective.hardware.n_threads == 2


def test_kv_type_sets_both_and_gives_way_to_either_in_the_same_layer() -> None:
    effective = resolve(user_file=user({"type_v": "f16", "kv_type": "q8_0"}))
    assert (effective.context.type_k, effective.context.type_v) == ("q8_0", "f16")
    effective = resolve(env={"LLMRUN_TYPE_K": "f32", "LLMRUN_KV_TYPE": "q4_0"})
    assert (effective.context.type_k, effective.context.type_v) == ("f32", "q4_0")
    assert effective.source("type_v") == "LLMRUN_KV_TYPE"
    effective = resolve(flags={"type_k": "f32", "kv_type": "q5_1"}, user_file=user({"type_v": "f16"}))
    assert (effective.context.type_k, effective.context.type_v) == ("f32", "q5_1")
    assert effective.source("type_v") == "flag --kv-type"


def test_a_quantised_v_cache_without_flash_attention_is_refused_with_both_sources() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(flags={"type_v": "q8_0"}, profile=profile({"flash_attn": "off"}))
    assert "flag -ctv" in caught.value.message
    assert "profile small" in caught.value.message
    assert resolve(flags={"type_k": "q8_0", "flash_attn": "off"}).context.type_k == "q8_0"
    assert resolve(flags={"type_v": "q8_0"}).hardware.flash_attn == "auto"


@pytest.mark.parametrize(
    ("key", "meant"), [("n_ctxt", "n_ctx"), ("temp", "temperature"), ("n-threads", "n_threads")]
)
def test_an_unknown_key_names_file_line_and_the_nearest_setting(key: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(user_file=user({"top_k": 4, key: 1}))
    assert "/c/config.yaml, line 2" in caught.value.message
    assert key in caught.value.message
    assert meant in caught.value.hint


def test_a_key_like_nothing_points_to_the_list() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(user_file=user({"zzzzzz": 1}))
    assert "config show" in caught.value.hint


@pytest.mark.parametrize("env", [{"LLMRUN_N_CTX": "5"}, {"LLMRUN_CTXT": "5"}])
def test_a_mistyped_variable_is_not_ignored(env: dict[str, str]) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(env=env)
    assert "LLMRUN_CTX?" in caught.value.hint


@pytest.mark.parametrize(
    ("layers", "where"),
    [
        ({"env": {"LLMRUN_CTX": "-5"}}, "LLMRUN_CTX"),
        ({"flags": {"n_ctx": -5}}, "flag -c"),
        ({"user_file": user({"n_ctx": -5})}, "/c/config.yaml, line 1"),
        ({"profile": profile({"n_ctx": -5})}, "/p/small.yaml"),
    ],
)
def test_a_value_out_of_range_names_place_value_and_range(layers: dict[str, Any], where: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(**layers)
    assert where in caught.value.message
    assert "-5" in caught.value.message
    assert "from 0 to 2147483647" in caught.value.hint


def test_a_bad_value_is_found_also_where_a_higher_layer_wins() -> None:
    with pytest.raises(UsageError):
        resolve(flags={"top_k": 5}, user_file=user({"top_k": "many"}))


def test_a_long_bad_value_does_not_flood_the_message() -> None:
    with pytest.raises(UsageError) as caught:
        resolve(env={"LLMRUN_CTX": "9" * 5000})
    assert len(caught.value.message) < 200


def test_a_model_file_sets_only_its_samplers_and_its_mistakes_are_left_out() -> None:
    metadata = {
        "general.sampling.temp": 0.6,
        "general.sampling.penalty_repeat": 1.1,
        "general.sampling.top_k": "forty",
        "general.sampling.mirostat": 2,
        "llama.context_length": 99,
    }
    effective = resolve(model_file=metadata)
    assert effective.sampling.temperature == 0.6
    assert effective.sampling.repeat_penalty == 1.1
    assert effective.sampling.top_k == BY_NAME["top_k"].default
    assert len(effective.warnings) == 1
    assert "general.sampling.top_k" in effective.warnings[0]
    changed = {s.name for s in SETTINGS if effective.source(s.name) != "built-in"}
    assert changed == {"temperature", "repeat_penalty"}


def test_views_hold_the_group_s_settings_with_their_types() -> None:
    effective = resolve()
    for group in GROUPS:
        view = getattr(effective, group)
        assert type(view) is VIEWS[group]
        assert set(get_type_hints(VIEWS[group])) == {s.name for s in SETTINGS if s.group == group}


def test_values_as_json_are_plain_and_complete() -> None:
    flags = {"logit_bias": {5: -1.0}, "stop": ["a"], "n_ctx": "max"}
    document = json.loads(json.dumps(resolve(flags=flags).as_json(), allow_nan=False))
    assert set(document) == set(BY_NAME)
    assert document["logit_bias"] == {"5": -1.0}
    assert document["stop"] == ["a"]
    assert document["n_ctx"] == 0


def test_rows_show_each_setting_once_with_its_source() -> None:
    rows = list(resolve(flags={"n_gpu_layers": -1}).rows())
    assert [row.name for row in rows] == [s.name for s in SETTINGS]
    shown = {row.name: (row.value, row.source) for row in rows}
    assert shown["n_gpu_layers"] == ("all", "flag -ngl")
    assert shown["n_ctx"] == ("auto", "built-in")


def test_names_of_settings_variables_and_flags_are_unique() -> None:
    rows = (*SETTINGS, KV_TYPE)
    flags = [s.flag for s in rows if s.flag]
    assert len({s.name for s in rows}) == len({env_name(s.name) for s in rows}) == len(rows)
    assert len(set(flags)) == len(flags)
    assert not {env_name(s.name) for s in rows} & RESERVED_ENV


@given(st.text())
def test_a_suggestion_is_always_a_setting(word: str) -> None:
    assert suggest_setting(word) in {None, KV_TYPE.name, *BY_NAME}


NAMES = st.sampled_from([("n_ctx", 64, 128), ("top_k", 1, 2), ("use_mmap", True, False), ("seed", 1, 2)])


@given(NAMES, st.booleans(), st.booleans(), st.booleans())
def test_the_highest_layer_that_has_a_value_wins(
    case: tuple[str, object, object], in_flag: bool, in_env: bool, in_file: bool
) -> None:
    name, low, high = case
    effective: Effective = resolve(
        flags={name: high} if in_flag else {},
        env={env_name(name): str(low)} if in_env else {},
        user_file=user({name: high}) if in_file else None,
    )
    expected = high if in_flag else low if in_env else high if in_file else BY_NAME[name].default
    assert effective.values[name] == expected
