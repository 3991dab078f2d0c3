"""Sizes of memory as people type them."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.app.memory.size_text import parse_device, parse_size
from llmrun.errors import UsageError
from llmrun.units import GIB, KIB, MIB


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("0", 0),
        ("1048576", MIB),
        ("12b", 12),
        ("24GiB", 24 * GIB),
        ("24g", 24 * GIB),
        ("24 gib", 24 * GIB),
        ("24GB", 24 * 10**9),
        ("512MiB", 512 * MIB),
        ("512MB", 512 * 10**6),
        ("1.5G", GIB + 512 * MIB),
        ("3k", 3 * KIB),
        ("3kB", 3000),
        ("2TiB", 2048 * GIB),
        (" 7 M ", 7 * MIB),
    ],
)
def test_sizes(text: str, size_bytes: int) -> None:
    assert parse_size(text, what="--reserve") == size_bytes


@pytest.mark.parametrize(
    "text", ["", "GiB", "-1G", "1e9", "1,5G", "1.G", ".5G", "24Gi", "24 GiB x", "nan", "inf", "9" * 40, "٣G"]
)
def test_no_sizes(text: str) -> None:
    with pytest.raises(UsageError, match="--reserve"):
        parse_size(text, what="--reserve")


@given(st.text())
def test_any_text_is_a_size_or_an_error(text: str) -> None:
    with suppress(UsageError):
        assert 0 <= parse_size(text, what="x") <= 1 << 60


@given(st.integers(0, 1 << 50))
def test_bytes_are_exact(size_bytes: int) -> None:
    assert parse_size(str(size_bytes), what="x") == size_bytes


def test_devices() -> None:
    assert parse_device("CUDA0=24GiB") == ("CUDA0", 24 * GIB)
    assert parse_device(" CPU = 0 ") == ("CPU", 0)
    for text in ("CUDA0", "=1G", "CUDA0=", "CUDA0=x", ""):
        with pytest.raises(UsageError, match="--device"):
            parse_device(text)
