from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.config.kinds import BiasMap, Choice, Number, Switch, Text, TextList
from llmrun.config.schema import BY_NAME, SETTINGS, Setting

ACCEPTED = [
    ("n_ctx", 4096, 4096),
    ("n_ctx", "4096", 4096),
    ("n_ctx", "max", 0),
    ("n_ctx", 0, 0),
    ("n_ctx", "Auto", "auto"),
    ("n_gpu_layers", "all", "all"),
    ("n_gpu_layers", -1, "all"),
    ("n_gpu_layers", "-1", "all"),
    ("n_gpu_layers", 0, 0),
    ("flash_attn", False, "off"),
    ("flash_attn", True, "on"),
    ("flash_attn", "AUTO", "auto"),
    ("type_k", "Q8_0", "q8_0"),
    ("temperature", 0, 0.0),
    ("temperature", "1e-1", 0.1),
    ("repeat_last_n", -1, -1),
    ("seed", -1, None),
    ("seed", "random", None),
    ("seed", None, None),
    ("seed", 42, 42),
    ("max_tokens", -1, None),
    ("rope_scaling", "none", "none"),
    ("rope_scaling", "model", None),
    ("rope_freq_base", 10_000, 10_000.0),
    ("use_mmap", "no", False),
    ("use_mmap", "1", True),
    ("stop", "END", ("END",)),
    ("stop", ["a", "\n"], ("a", "\n")),
    ("stop", '["a", "b"]', ("a", "b")),
    ("stop", "[INST]", ("[INST]",)),
    ("logit_bias", {15043: -5}, ((15043, -5.0),)),
    ("logit_bias", "15043-5, 7+0.5", ((15043, -5.0), (7, 0.5))),
    ("logit_bias", ["15043-5"], ((15043, -5.0),)),
    ("logit_bias", ["15043=-5", "7 = 2"], ((15043, -5.0), (7, 2.0))),
    ("tensor_split", "3,1", (3.0, 1.0)),
    ("tensor_split", [0, 0.5], (0.0, 0.5)),
    ("tensor_split", "none", ()),
    ("main_gpu", "none", None),
    ("main_gpu", "1", 1),
    ("override_tensor", r"a{1,2}=b=CPU", (r"a{1,2}=b=CPU",)),
    ("rpc", "a:1,b:2", ("a:1,b:2",)),
    ("rpc", ["[::1]:50052"], ("[::1]:50052",)),
    ("system", "", None),
    ("system", " be brief", " be brief"),
]
REFUSED = [
    ("n_ctx", -1),
    ("n_ctx", 1 << 31),
    ("n_ctx", 4096.0),
    ("n_ctx", True),
    ("n_ctx", None),
    ("n_ctx", "8k"),
    ("n_ctx", [4096]),
    ("n_threads", 0),
    ("n_threads", 513),
    ("n_parallel", 257),
    ("n_batch", 0),
    ("n_gpu_layers", -2),
    ("flash_attn", "maybe"),
    ("type_k", "q2_k"),
    ("temperature", -0.1),
    ("temperature", float("nan")),
    ("temperature", "inf"),
    ("frequency_penalty", 10**400),
    ("top_p", 1.01),
    ("top_p", True),
    ("typical_p", 0),
    ("repeat_penalty", 0),
    ("repeat_last_n", -2),
    ("seed", 0xFFFF_FFFF),
    ("max_tokens", 0),
    ("use_mmap", "perhaps"),
    ("use_mmap", 2),
    ("rope_freq_scale", 0),
    ("stop", [""]),
    ("stop", [1]),
    ("stop", {"a": 1}),
    ("logit_bias", {"x": 1}),
    ("logit_bias", {1: float("inf")}),
    ("logit_bias", {1: 10**400}),
    ("logit_bias", {-1: 1}),
    ("logit_bias", "15043"),
    ("logit_bias", "15043 5"),
    ("logit_bias", "15043=--5"),
    ("logit_bias", "1,"),
    ("tensor_split", "0,0"),
    ("tensor_split", "3;1"),
    ("tensor_split", [True]),
    ("tensor_split", 3),
    ("tensor_split", "-1,2"),
    ("main_gpu", -1),
    ("override_tensor", "CPU"),
    ("override_tensor", "=CPU"),
    ("rpc", "localhost"),
    ("rpc", "a:1,"),
    ("system", 5),
    ("think", None),
]


@pytest.mark.parametrize(("name", "raw", "value"), ACCEPTED)
def test_spellings_of_a_value(name: str, raw: object, value: object) -> None:
    parsed = BY_NAME[name].kind.parse(raw)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(("name", "raw"), REFUSED)
def test_values_that_are_not_allowed(name: str, raw: object) -> None:
    with pytest.raises((ValueError, OverflowError)):
        BY_NAME[name].kind.parse(raw)


@pytest.mark.parametrize("row", SETTINGS, ids=lambda s: s.name)
def test_every_default_is_allowed_and_reads_back_from_what_is_shown(row: Setting) -> None:
    assert row.kind.parse(row.default) == row.default
    if not isinstance(row.kind, Text | TextList | BiasMap):  # their "none" is a display, not a spelling
        assert row.kind.parse(row.kind.show(row.default)) == row.default


@given(st.integers(min_value=-5, max_value=600))
def test_a_range_admits_exactly_its_numbers(number: int) -> None:
    kind = Number(1, 512)
    if 1 <= number <= 512:
        assert kind.parse(number) == kind.parse(str(number)) == number
    else:
        with pytest.raises((ValueError, OverflowError)):
            kind.parse(number)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Number(1, 512, {"auto": "auto"}), "a whole number from 1 to 512, or auto"),
        (Number(0, whole=False), "a number of 0 or more"),
        (Number(0, whole=False, above_low=True), "a number above 0"),
        (Number(0, 1, whole=False, above_low=True), "a number above 0 up to 1"),
        (Number(0, 9, {"all": "all", "-1": "all"}), "a whole number from 0 to 9, or all"),
        (Choice(("a", "b"), "model"), "one of a, b, model"),
    ],
)
def test_ranges_in_words(kind: Number | Choice, text: str) -> None:
    assert kind.expected == text


@given(st.dictionaries(st.integers(0, 300_000), st.floats(-100, 100), max_size=5))
def test_a_bias_survives_as_it_was_given(bias: dict[int, float]) -> None:
    assert BiasMap().parse(bias) == tuple(bias.items())
    assert BiasMap().parse(tuple(bias.items())) == tuple(bias.items())


@given(st.lists(st.text(min_size=1), max_size=4))
def test_stop_texts_survive_a_json_list(texts: list[str]) -> None:
    assert TextList().parse(json.dumps(texts)) == tuple(texts)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(SETTINGS), JUNK)
def test_whatever_is_accepted_is_a_fixed_point(row: Setting, raw: object) -> None:
    try:
        value = row.kind.parse(raw)
    except (ValueError, OverflowError):
        return
    assert row.kind.parse(value) == value
    assert isinstance(row.kind.show(value), str)


def test_special_values_show_as_their_words() -> None:
    assert BY_NAME["n_ctx"].kind.show(0) == "max"
    assert BY_NAME["n_gpu_layers"].kind.show("all") == "all"
    assert BY_NAME["n_gpu_layers"].kind.show(0) == "0"
    assert BY_NAME["max_tokens"].kind.show(None) == "unlimited"
    assert Switch().show(False) == "false"
    assert BiasMap().show(((5, -1.0), (7, 0.5))) == "5-1, 7+0.5"
