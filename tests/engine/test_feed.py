"""Feeding tokens without sampling: the same promises over llama.cpp and over the scripted engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from llmrun.engine.api import ContextParams, Engine, ModelParams
from llmrun.engine.scripted import Script, scripted_factory

from tests.support.engines import EXACT, OpenTiny, distance, last_logits, open_llama, run_one
from tests.support.puppet import Puppet

Open = Callable[..., Engine]
BATCH = 16


@pytest.fixture(params=["llama", "scripted"])
def opened(request: pytest.FixtureRequest, puppet: Puppet) -> Iterator[Open]:
    engines: list[Engine] = []

    def open_one(**params: Any) -> Engine:
        params = {"n_ctx": 256, "n_batch": BATCH, "n_ubatch": 8} | params
        if request.param == "llama":
            engines.append(open_llama(puppet.path, **params))
        else:
            factory = scripted_factory(Script([["x"]]))
            engines.append(
                factory(ModelParams(""), ContextParams(**params), lambda _: None, threading.Event())
            )
        return engines[-1]

    yield open_one
    for engine in engines:
        engine.close()


def pairs(seq: int, *tokens: int) -> list[tuple[int, int]]:
    return [(seq, token) for token in tokens]


@pytest.mark.parametrize("count", [1, BATCH, BATCH + 1, 3 * BATCH + 5])
def test_any_number_of_tokens_is_held_afterwards(opened: Open, count: int) -> None:
    engine = opened()
    tokens = [index % 7 for index in range(count)]
    assert engine.feed(pairs(0, *tokens)) == "ok"
    assert list(engine.held(0)) == tokens


def test_sequences_mix_in_a_batch(opened: Open) -> None:
    engine = opened(n_seq=3, n_ctx=768)
    assert engine.feed([*pairs(0, 1, 2), *pairs(2, 3), *pairs(0, 4), *pairs(1, *range(20))]) == "ok"
    assert [list(engine.held(seq)) for seq in range(3)] == [[1, 2, 4], list(range(20)), [3]]


def test_rewinding(opened: Open) -> None:
    engine = opened(n_seq=2)
    engine.feed([*pairs(0, *range(10)), *pairs(1, 5)])
    assert engine.rewind(0, 20) == 10
    assert engine.rewind(0, 4) == 4
    engine.feed(pairs(0, 9))
    assert list(engine.held(0)) == [0, 1, 2, 3, 9]
    assert engine.rewind(0, 0) == 0
    assert (list(engine.held(0)), list(engine.held(1))) == ([], [5])


def test_a_full_cache(opened: Open) -> None:
    engine = opened()
    assert engine.feed(pairs(0, *[1] * 256)) == "ok"
    assert engine.feed(pairs(0, 1)) == "full"
    assert len(engine.held(0)) == 256
    engine.rewind(0, 8)
    assert engine.feed(pairs(0, 1)) == "ok"


def test_an_interrupt(opened: Open) -> None:
    engine = opened()
    engine.interrupt()
    assert engine.feed(pairs(0, 1, 2)) == "aborted"
    engine.resume()
    assert engine.feed(pairs(0, 1, 2)) == "ok"
    assert list(engine.held(0)) == [1, 2]


def test_the_engine_says_what_it_is(opened: Open) -> None:
    identity = opened().facts.identity
    assert identity.build
    assert identity.backends == "CPU"
    assert identity.cpu_info
    assert identity.model_bytes > 0 < identity.n_params
    assert len(identity.model_type.split()) >= 3


@pytest.mark.parametrize("arch", ["llama", "gemma3", "mamba"])
def test_fed_tokens_give_the_logits_of_a_prompt(open_tiny: OpenTiny, arch: Any) -> None:
    tokens = [3, 9, 27, 81, 11, 33, 99, 65]
    expected = run_one(open_tiny(arch, n_batch=4, n_ubatch=4, **EXACT), tokens).logits
    engine = open_tiny(arch, n_batch=4, n_ubatch=4, copy=1, **EXACT)
    assert engine.feed(pairs(0, *tokens)) == "ok"
    assert distance(last_logits(engine), expected) < 1e-5


@pytest.mark.parametrize("arch", ["llama", "mamba"])
def test_rewound_sequences_go_on_like_new_ones(open_tiny: OpenTiny, arch: Any) -> None:
    engine = open_tiny(arch, n_batch=4, n_ubatch=4, **EXACT)
    engine.feed(pairs(0, 3, 9, 27, 81, 11))
    kept = engine.rewind(0, 3)
    engine.feed(pairs(0, *[3, 9, 27][kept:]))
    engine.feed(pairs(0, 50))
    again = last_logits(engine)
    other = open_tiny(arch, n_batch=4, n_ubatch=4, copy=1, **EXACT)
    other.feed(pairs(0, 3, 9, 27))
    other.feed(pairs(0, 50))
    assert distance(again, last_logits(other)) < 1e-5


def test_what_the_engine_reserves_is_told(puppet: Puppet) -> None:
    engine = open_llama(puppet.path)
    facts = engine.facts
    assert facts.compute_bytes.keys() == facts.weights_bytes.keys() == {"CPU"}
    assert facts.weights_bytes["CPU"] >= 0.9 * facts.identity.model_bytes
    assert facts.compute_bytes["CPU"] > 0
    engine.close()
