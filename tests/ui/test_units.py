"""Figures as people read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.units import (
    GIB,
    KIB,
    MIB,
    TIB,
    format_bandwidth,
    format_bytes,
    format_counted,
    format_seconds,
    format_tokens,
)

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


@pytest.mark.parametrize(
    ("bytes_per_s", "text"),
    [(400e9, "400 GB/s"), (50.74e9, "50.7 GB/s"), (4.26e6, "0.00426 GB/s"), (4.8e12, "4,800 GB/s")],
)
def test_bandwidth_is_told_as_it_is_sold(bytes_per_s: float, text: str) -> None:
    assert format_bandwidth(bytes_per_s) == text


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0, "0 ms"),
        (0.0042, "4.2 ms"),
        (2.5, "2500 ms"),
        (12.34, "12.3 s"),
        (119.94, "119.9 s"),
        (120, "2 min 00 s"),
        (7199.4, "119 min 59 s"),
        (7200, "2 h 00 min"),
        (7199.6, "2 h 00 min"),
        (3_600_000 + 59 * 60, "1,000 h 59 min"),
    ],
)
def test_times_are_in_the_largest_units(time_s: float, text: str) -> None:
    assert format_seconds(time_s) == text


@given(st.integers(0, 1 << 60))
def test_a_size_can_be_read_back(size_bytes: int) -> None:
    number, unit = format_bytes(size_bytes).split()
    assert float(number) * UNITS[unit] == pytest.approx(size_bytes, rel=0.0051)


def test_one_thing_is_not_several() -> None:
    assert [format_counted(n, "thread") for n in (0, 1, 2, 8192)] == [
        "0 threads",
        "1 thread",
        "2 threads",
        "8,192 threads",
    ]
    assert format_tokens(1) == "1 token"
