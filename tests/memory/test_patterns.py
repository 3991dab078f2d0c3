"""Tensor patterns: what Python and the engine read alike, and what is refused."""

from __future__ import annotations

import warnings

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from llmrun.errors import UsageError
from llmrun.memory.patterns import tensor_pattern

SAME = (
    r"blk\.[0-9]+\.ffn_(up|down|gate)_exps",
    r"\.ffn_(up|down|gate|gate_up)_(ch|)exps",
    r"blk\.(?:1|2)\.(?!attn).*",
    r"a{2,3}|b{1}",
    r"\(?x\{y",
    r"[(?x{]",
    r"[^]]",
    r"[[a]&&b--c]",
    "",
)
OTHER = (
    r"(?<=a)b", r"(?<!a)b", r"(?i)x", r"(?P<n>x)", r"(?#c)x", r"(?>x)", r"a{,3}", r"x{", r"\Ax", r"x\Z",
    r"[[:alpha:]]+", r"[a[.b.]]", r"\N{DIGIT ONE}", "(", "[a-", r"\1", "*",
)  # fmt: skip


@pytest.mark.parametrize("pattern", SAME)
def test_common_syntax_is_taken(pattern: str) -> None:
    assert tensor_pattern(pattern).pattern == pattern


@pytest.mark.parametrize("pattern", OTHER)
def test_what_the_engine_has_not_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="tensor pattern"):
        tensor_pattern(pattern)


@example("[[ab]")
@given(st.text(st.sampled_from("ab.\\([{})]?*+|^$<=!:,-&~0[A"), max_size=12))
def test_any_text_is_compiled_or_refused(pattern: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            tensor_pattern(pattern).search("blk.0.attn_q.weight")
        except UsageError:
            return
