"""What may be handed to the engine, and that mutated files never get past with a crash."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrun.errors import LlmrunError, NotAModel
from llmrun.gguf.check import check_runnable
from llmrun.gguf.facts import model_facts
from llmrun.gguf.reader import NeedMoreBytes, parse_header, read_header

from tests.support.bad import OTHER_KINDS, SOUND, UNRUNNABLE, cut_files
from tests.support.models import gemma_path, smollm2_path
from tests.support.puppet import write_puppet
from tests.support.tiny import Arch, write_tiny

TINY: tuple[Arch, ...] = ("llama", "gemma3", "mamba")


@pytest.mark.parametrize("model", [smollm2_path, gemma_path])
def test_real_models_may_run(model: Callable[[], Path]) -> None:
    path = model()
    assert check_runnable(read_header(path), name=str(path)) == model_facts(read_header(path))


def test_fixture_models_may_run(tmp_path: Path) -> None:
    paths = [write_tiny(tmp_path / f"{arch}.gguf", arch) for arch in TINY]
    for path in [*paths, write_puppet(tmp_path / "p.gguf", ["a"]).path]:
        check_runnable(read_header(path), name=str(path))


def test_the_file_the_hostile_ones_are_made_from_is_sound() -> None:
    check_runnable(parse_header(SOUND, file_bytes=len(SOUND)), name="x.gguf")


@pytest.mark.parametrize("name", UNRUNNABLE)
def test_hostile_values_are_refused_in_one_printable_line(name: str) -> None:
    data = UNRUNNABLE[name]
    header = parse_header(data, file_bytes=len(data))
    model_facts(header)
    with pytest.raises(NotAModel) as caught:
        check_runnable(header, name="x.gguf")
    assert caught.value.message.isprintable()
    assert "x.gguf" in caught.value.message


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_other_kinds_are_named(name: str) -> None:
    data = OTHER_KINDS[name]
    with pytest.raises(NotAModel, match=r"not a text-generation model|holds no weights"):
        check_runnable(parse_header(data, file_bytes=len(data)), name="x.gguf")


def test_short_files_are_refused_with_both_numbers(tmp_path: Path) -> None:
    _, in_data = cut_files(smollm2_path(), tmp_path)
    with pytest.raises(NotAModel, match=r"has 4,000,000 bytes, its header needs 98,362,432"):
        check_runnable(read_header(in_data), name="x")
    puppet = write_puppet(tmp_path / "p.gguf", ["a"]).path
    whole = puppet.read_bytes()
    puppet.write_bytes(whole[:-1])
    with pytest.raises(NotAModel, match="incomplete"):
        check_runnable(read_header(puppet), name="x")


def refused_or_sound(data: bytes) -> None:
    """Nothing but the program's own errors comes out of any bytes, each on one line."""
    message = ""
    try:
        header = parse_header(data, name="x", file_bytes=len(data))
        model_facts(header)
        check_runnable(header, name="x")
    except LlmrunError as error:
        message = error.message
    assert message == "" or message.isprintable()


@pytest.fixture(scope="module")
def seed_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tiny(tmp_path_factory.mktemp("seed") / "m.gguf", "gemma3").read_bytes()


def mutate(data: bytes, rng: random.Random) -> bytes:
    """`data` with some of its header bytes overwritten, doubled or dropped."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(min(len(out), 14_000))
        n = rng.choice((1, 1, 2, 4, 8, 64))
        kind = rng.randrange(5)
        if kind == 0:
            out[at : at + n] = rng.randbytes(n)
        elif kind == 1:
            out[at : at + n] = b"\xff" * n
        elif kind == 2:
            out[at : at + n] = bytes(n)
        elif kind == 3:
            del out[at : at + n]
        else:
            out[at:at] = out[at : at + n]
    return bytes(out[: rng.randrange(len(out))]) if rng.random() < 0.1 else bytes(out)


@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_mutated_headers(seed_file: bytes, seed: int) -> None:
    refused_or_sound(mutate(seed_file, random.Random(seed)))


@settings(max_examples=150, deadline=None)
@given(tail=st.binary(max_size=300))
def test_arbitrary_bytes_after_the_magic(tail: bytes) -> None:
    refused_or_sound(b"GGUF\x03\0\0\0" + tail)
    with contextlib.suppress(NotAModel, NeedMoreBytes):
        parse_header(b"GGUF\x03\0\0\0" + tail)


@pytest.mark.slow
def test_ten_thousand_mutations_stay_within_bounds(seed_file: bytes) -> None:
    import tracemalloc

    rng = random.Random(1)
    tracemalloc.start()
    try:
        for _ in range(10_000):
            refused_or_sound(mutate(seed_file, rng))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 64 << 20
