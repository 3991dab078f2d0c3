"""The table of architectures against the engine's own."""

from __future__ import annotations

import ctypes

import pytest

from llmrun.engine.bindings import native_function
from llmrun.errors import EngineFailure
from llmrun.gguf.architectures import KNOWN, unknown_architecture

_NAME_OF = "_Z13llm_arch_name8llm_arch"
_NONE = {"(unknown)", "unknown"}


def test_the_table_is_the_engines() -> None:
    try:
        name_of = native_function(_NAME_OF, ctypes.c_char_p, ctypes.c_int)
    except EngineFailure:
        pytest.skip("this build of the engine does not tell its architectures")
    names = {name_of(number).decode() for number in range(len(KNOWN) + 20)}
    assert names - _NONE == KNOWN


def test_only_others_are_warned_about() -> None:
    assert not any(map(unknown_architecture, KNOWN))
    warning = unknown_architecture("zebra\x1b[31m" + "x" * 100)
    assert "zebra" in warning
    assert "\x1b" not in warning
    assert len(warning) < 150
