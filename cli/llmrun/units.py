"""Pure formatters: bytes, times, rates and counts as people read them.

Sizes are bytes in code and binary units on screen; times are seconds in code and milliseconds on screen
(seconds from 10 s up); rates are tokens a second; a memory's bandwidth is decimal, as its makers tell it.
"""

from __future__ import annotations

KIB, MIB, GIB, TIB = 1 << 10, 1 << 20, 1 << 30, 1 << 40


def format_bytes(size_bytes: float) -> str:
    """Size in the largest binary unit that keeps the number at or above 1, e.g. `180.0 MiB`."""
    for unit, name in ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if abs(size_bytes) >= unit:
            value = size_bytes / unit
            return f"{value:.1f} {name}" if value >= 10 else f"{value:.2f} {name}"
    return f"{size_bytes:.0f} B"


def format_bandwidth(bytes_per_s: float) -> str:
    """Bytes a second in GB/s, the decimal unit that memory is sold by, e.g. `400 GB/s`."""
    value = bytes_per_s / 1e9
    return f"{value:,.0f} GB/s" if value >= 1000 else f"{value:.3g} GB/s"


def format_seconds(time_s: float) -> str:
    """Duration: milliseconds below 10 s (one decimal below 10 ms), then seconds, minutes, hours."""
    if 0 < time_s < 0.00995:
        return f"{time_s * 1000:.1f} ms"
    if time_s < 10:
        return f"{time_s * 1000:.0f} ms"
    if time_s < 120:
        return f"{time_s:.1f} s"
    minutes, seconds = divmod(round(time_s), 60)
    if minutes >= 120:
        hours, minutes = divmod(round(time_s / 60), 60)
        return f"{hours:,} h {minutes:02d} min"
    return f"{minutes} min {seconds:02d} s"


def format_rate(tokens_per_s: float | None) -> str:
    """Rate in tok/s with three or four significant digits; a dash where there is none."""
    if tokens_per_s is None:
        return "– tok/s"
    digits = 0 if tokens_per_s >= 1000 else 1 if tokens_per_s >= 10 else 2
    return f"{tokens_per_s:,.{digits}f} tok/s"


def format_counted(count: int, thing: str) -> str:
    """A count of things whose plural ends in s, e.g. `1 thread`, `8,192 threads`."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def format_tokens(count: int) -> str:
    """A count of tokens, e.g. `1 token`, `8,192 tokens`."""
    return format_counted(count, "token")


def format_count(count: int) -> str:
    """Whole number with thousands separated, e.g. `8,192`."""
    return f"{count:,}"
