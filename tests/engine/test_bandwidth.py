"""Reading memory fast: the buffer beats the caches, the child answers with a plausible rate."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from llmrun.engine.bandwidth import (
    MAX_BUFFER_BYTES,
    MIN_BUFFER_BYTES,
    buffer_bytes,
    last_level_cache_bytes,
    measure_read_bandwidth,
)
from llmrun.engine.probe.scan import MIN_PASSES, scan_passes
from llmrun.units import GIB, MIB

ROOT = "/sys/devices/system/cpu"


def caches(cpu: int, shared: str, **sizes: str) -> dict[str, str]:
    files: dict[str, str] = {}
    for index, (level, size) in enumerate(sizes.items()):
        folder = f"{ROOT}/cpu{cpu}/cache/index{index}"
        files |= {f"{folder}/level": level.lstrip("l") + "\n", f"{folder}/size": size + "\n"}
        files[f"{folder}/shared_cpu_list"] = shared + "\n"
    return files


def total(files: Mapping[str, str]) -> int:
    return last_level_cache_bytes(files.get)


def test_caches_that_cpus_share_count_once() -> None:
    files = {f"{ROOT}/online": "0-3\n"}
    for cpu, shared in enumerate(("0-1", "0-1", "2-3", "2-3")):
        files |= caches(cpu, shared, l1="32K", l2="512K", l3="96M")
    assert total(files) == 2 * 96 * MIB
    assert buffer_bytes(files.get) == 8 * 96 * MIB


@pytest.mark.parametrize(
    "files", [{}, {f"{ROOT}/online": "garbage"}, {f"{ROOT}/online": "0"}, {f"{ROOT}/online": "-\n"}]
)
def test_a_system_that_tells_nothing_gets_the_smallest_buffer(files: dict[str, str]) -> None:
    assert total(files) == 0
    assert buffer_bytes(files.get) == MIN_BUFFER_BYTES


def test_the_buffer_has_an_upper_bound() -> None:
    files = {f"{ROOT}/online": "0", **caches(0, "0", l3="4096M")}
    assert buffer_bytes(files.get) == MAX_BUFFER_BYTES


def test_a_damaged_cache_size_is_left_out() -> None:
    files = {f"{ROOT}/online": "0", **caches(0, "0", l2="512K", l3="lots")}
    assert total(files) == 512 * 1024


@pytest.mark.parametrize("n_threads", [1, 3])
def test_passes_are_counted_and_positive(n_threads: int) -> None:
    rates = scan_passes(n_threads, 3 * MIB, 0.0)
    assert len(rates) == MIN_PASSES
    assert min(rates) > 0


def test_the_child_measures() -> None:
    assert 1e8 < measure_read_bandwidth(1, GIB) < 1e13
