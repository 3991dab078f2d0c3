"""Figures as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.units import GIB, KIB, MIB, TIB, format_bytes

UNITS = {"B": 1, "KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB}


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (KIB, "1.00 KiB"),
        (180 * MIB, "180.0 MiB"),
        (TIB - GIB, "1023.0 GiB"),
        (TIB, "1.00 TiB"),
        (3 * TIB + TIB // 2, "3.50 TiB"),
        (2048 * TIB, "2048.0 TiB"),
        (-TIB, "-1.00 TiB"),
    ],
)
def test_sizes_are_in_the_largest_unit(size_bytes: int, text: str) -> None:
    assert format_bytes(size_bytes) == text


@given(st.integers(0, 1 << 60))
def test_a_size_can_be_read_back(size_bytes: int) -> None:
    number, unit = format_bytes(size_bytes).split()
    assert float(number) * UNITS[unit] == pytest.approx(size_bytes, rel=0.0051)
