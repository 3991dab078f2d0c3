"""The reuse law for the whole prefix cache: live sequence, checkpoints, copies in memory, snapshots on disk.

Random requests on small F32 models of each memory kind, each time on the best way the cache finds; now and
then the process "ends", so that only the disk is left. The logits are always those of a cold context, and
the report accounts for every token.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmrun.app.prefixes.cache import PrefixCache
from llmrun.app.prefixes.disk import DiskPrefixes
from llmrun.app.prefixes.settings import layout_settings
from llmrun.chat.turns import History
from llmrun.engine.api import ContextParams, Job, PrefillStep, TokenStep
from llmrun.engine.llama import LlamaEngine
from llmrun.engine.scripted import Script, ScriptedEngine
from llmrun.events import PrefixReport
from llmrun.store.model_digest import ModelFiles
from llmrun.store.snapshots import SnapshotStore

from tests.support.engines import EXACT, GREEDY, distance, forget, last_logits, open_llama, run_one
from tests.support.models import gemma_path
from tests.support.prefixes import keep_everything
from tests.support.tiny import Arch, write_tiny

KINDS: dict[str, tuple[Arch, bool, float]] = {
    "full": ("llama", False, 1e-4),
    "window": ("gemma3", False, 2e-2),
    "window, swa_full": ("gemma3", True, 2e-2),
    "recurrent": ("mamba", False, 1e-4),
    "hybrid": ("falcon-h1", False, 1e-4),
}
LONGEST = 500


@pytest.fixture(autouse=True)
def _everything_is_worth_keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_everything(monkeypatch)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, LlamaEngine]]]:
    folder = tmp_path_factory.mktemp("tiny")
    opened = {}
    for name, (arch, swa_full, _) in KINDS.items():
        path = write_tiny(folder / f"{arch}.gguf", arch)
        opened[name] = (path, open_llama(path, **EXACT, n_ctx=768, n_ubatch=16, swa_full=swa_full))
    yield opened
    for _, engine in opened.values():
        engine.close()


def words(choices: tuple[int, ...]) -> list[int]:
    """Tokens of a few long words, so that prompts share prefixes of all lengths."""
    return [3 + (seed * 977 + i * i * 31 + i) % 250 for seed in choices for i in range(20 + 30 * (seed % 3))]


PROMPTS = st.lists(st.integers(0, 3), min_size=1, max_size=6).map(tuple).map(words)


def new_process(path: Path, engine: LlamaEngine, folder: Path, first_ctx: int | None = None) -> PrefixCache:
    """Of a command without -c."""
    forget(engine)
    disk = DiskPrefixes(
        SnapshotStore(folder, 1 << 28),
        ModelFiles.now([path]),
        lambda: layout_settings(engine.facts, {}, sized=False),
        first_ctx=first_ctx,
    )
    return PrefixCache(engine, time.perf_counter, disk=disk)


def answer(
    cache: PrefixCache, engine: LlamaEngine, prompt: list[int], cuts: tuple[int, ...], n: int
) -> tuple[list[float], PrefixReport, int]:
    """Logits behind the prompt, the report, and the tokens that were reused."""
    marks = yield_all(cache.prepare(prompt, lambda start: (c for c in cuts if c > start)))
    logits: list[float] = []
    report, reused = PrefixReport(), -1
    for step in engine.run([Job(0, prompt, GREEDY, n, marks=marks)]):
        match step:
            case PrefillStep():
                cache.reached(step)
                if step.done == 0:
                    report, reused = cache.report(step.reused), step.reused
            case TokenStep():
                logits = logits or last_logits(engine)
    return logits, report, reused


def yield_all(prepared: Iterator[object]) -> tuple[int, ...]:
    """Run a preparation to its end; nothing is to be noted here."""
    while True:
        try:
            note = next(prepared)
        except StopIteration as end:
            marks: tuple[int, ...] = end.value
            return marks
        raise AssertionError(note)


@pytest.mark.parametrize("name", KINDS)
def test_any_requests_in_any_order_give_the_logits_of_a_cold_context(
    engines: dict[str, tuple[Path, LlamaEngine]], tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    """Processes may have contexts of other sizes."""
    path, first = engines[name]
    _, swa_full, tolerance = KINDS[name]
    larger = open_llama(path, **EXACT, n_ctx=1536, n_ubatch=16, swa_full=swa_full)
    cold = open_llama(path, **EXACT, n_ctx=768, n_ubatch=16)

    @settings(max_examples=12, deadline=None, database=None)
    @given(
        requests=st.lists(
            st.tuples(
                PROMPTS,
                st.integers(1, 30),
                st.sampled_from(["live", "live", "new process"]),
                st.integers(0, 4),
            ),
            min_size=2,
            max_size=5,
        ),
        cuts=st.tuples(st.integers(1, 60), st.integers(60, 200)),
        converses=st.booleans(),
    )
    def law(requests: list[tuple[list[int], int, str, int]], cuts: tuple[int, int], converses: bool) -> None:
        folder = tmp_path_factory.mktemp("cache")
        engine, other = first, larger
        cache = new_process(path, engine, folder)
        for prompt, n, process, n_ahead in requests:
            if process == "new process":
                engine, other = other, engine
                cache = new_process(path, engine, folder)
            prompt = prompt[:LONGEST]
            logits, report, reused = answer(cache, engine, prompt, cuts, n)
            told = (report.memory_tokens, report.checkpoint_tokens, report.disk_tokens)
            assert sum(told) == reused < len(prompt)
            assert bool(report.miss_reason) == (reused == 0)
            forget(cold)
            assert distance(logits, run_one(cold, prompt).logits) < tolerance
            assert list(cache.keep(len(prompt), 1.0, History() if converses else None)) == []
            cache.read_ahead([*engine.held(0), *words((1,))[:n_ahead]])

    law()
    cold.close()
    larger.close()


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_what_was_read_ahead_is_saved_or_taken_back(
    engines: dict[str, tuple[Path, LlamaEngine]], tmp_path: Path, name: str, right: bool
) -> None:
    """Never where the memory forgets: it could not be taken back there."""
    path, engine = engines[name]
    cache = new_process(path, engine, tmp_path)
    answer(cache, engine, words((1, 2)), (), 12)
    held = list(engine.held(0))
    ahead = [] if cache._engine.facts.memory.recurrent or cache._engine.facts.memory.n_swa else [5, 6, 7]
    cache.read_ahead([*held, 5, 6, 7])
    assert engine.held(0) == [*held, *ahead]
    prompt = [*held, 5, 6, 7, 8, 9] if right else [*held, 5, 6, 8, 9]
    logits, report, reused = answer(cache, engine, prompt, (), 1)
    assert reused == len(held) + (len(ahead) if right else 0)
    assert (report.miss_reason, report.difference) == ("", None)
    forget(engine)
    assert distance(logits, run_one(engine, prompt).logits) < KINDS[name][2]


def test_only_a_little_more_of_the_same_sequence_is_read_ahead(
    engines: dict[str, tuple[Path, LlamaEngine]], tmp_path: Path
) -> None:
    path, engine = engines["full"]
    cache = new_process(path, engine, tmp_path)
    answer(cache, engine, words((1,)), (), 3)
    held = list(engine.held(0))
    for opening in ([], held, held[:-1], [*held[:-1], 3, 4], [*held, *words((1,))], [*held, 5] * 40):
        cache.read_ahead(opening)
        assert engine.held(0) == held


def test_a_conversation_that_made_its_context_grow_leaves_its_beginning_to_others(
    engines: dict[str, tuple[Path, LlamaEngine]], tmp_path: Path
) -> None:
    path, engine = engines["full"]
    document = words((1, 2))
    for prompt in (document, words((1, 2, 3, 1, 2, 3))):
        cache = new_process(path, engine, tmp_path, first_ctx=256)
        answer(cache, engine, prompt, (), 1)
        list(cache.keep(len(prompt), 1.0, None))
    small = open_llama(path, **EXACT, n_ctx=256, n_ubatch=16)
    _, report, reused = answer(new_process(path, small, tmp_path), small, [*document, 5], (), 1)
    assert reused == report.disk_tokens == len(document)
    small.close()


def test_a_context_too_small_for_what_is_stored_evaluates_the_prompt(
    engines: dict[str, tuple[Path, LlamaEngine]], tmp_path: Path
) -> None:
    path, engine = engines["full"]
    cache = new_process(path, engine, tmp_path)
    answer(cache, engine, words((1, 2, 3, 1)) * 2, (), 1)
    list(cache.keep(len(engine.held(0)), 1.0, None))
    small = open_llama(path, **EXACT, n_ctx=256, n_ubatch=16)
    cache = new_process(path, small, tmp_path)
    marks = cache.prepare(words((1, 2)))
    assert "n_ctx" in next(marks).text
    assert cache.report(0).miss_reason.startswith("settings changed: n_ctx is 256")
    small.close()


@pytest.mark.parametrize("name", KINDS)
def test_a_document_is_evaluated_once_for_all_questions(
    engines: dict[str, tuple[Path, LlamaEngine]], tmp_path: Path, name: str
) -> None:
    """Each question in a process of its own; on every memory kind only the question is evaluated."""
    path, engine = engines[name]
    document = words((1, 2, 3, 1))
    for number, question in enumerate(((7,), (8,), (9,), (7,))):
        cache = new_process(path, engine, tmp_path)
        prompt = document + words(question)[:25]
        _, report, reused = answer(cache, engine, prompt, (len(document),), 3)
        assert reused == (0 if number == 0 else report.disk_tokens)
        if number == 1:
            assert reused >= len(document)
        if number == 3:  # the first question again
            assert len(prompt) - reused <= 4
        list(cache.keep(len(prompt), 1.0, None))


@pytest.mark.parametrize("name", KINDS)
def test_a_branch_does_not_evaluate_the_common_part_again(
    engines: dict[str, tuple[Path, LlamaEngine]], tmp_path: Path, name: str
) -> None:
    """/regen asks the same again after an answer, /undo asks something else in place of the last message."""
    path, engine = engines[name]
    cache = new_process(path, engine, tmp_path)
    prompts = [words((1, 2, 1)), words((1, 2, 1, 2, 3)), words((1, 2, 1, 2, 3, 2))]
    for before, prompt in itertools.pairwise([[], *prompts]):
        answer(cache, engine, prompt, (len(before),), 240 if prompt is prompts[-1] else 12)
    _, report, reused = answer(cache, engine, prompts[-1], (len(prompts[-2]),), 12)
    assert len(prompts[-1]) - reused <= 4
    _, report, reused = answer(cache, engine, [*prompts[-2], 5, 6, 7, 8, 9, 10], (len(prompts[-2]),), 12)
    assert len(prompts[-2]) - 4 <= reused <= len(prompts[-2])
    assert report.checkpoint_tokens == (0 if name in ("full", "window, swa_full") else reused)


@pytest.mark.parametrize("name", KINDS)
def test_a_chat_that_goes_on_leaves_one_snapshot(
    engines: dict[str, tuple[Path, LlamaEngine]], tmp_path: Path, name: str
) -> None:
    """Also when it was left in between; another chat's stays."""
    path, engine = engines[name]
    other = new_process(path, engine, tmp_path)
    answer(other, engine, words((3, 3)), (), 3)
    list(other.keep(1, 1.0, History()))
    prompt = words((1, 2))
    for _ in range(2):
        cache = new_process(path, engine, tmp_path)
        for _ in range(2):
            answer(cache, engine, prompt, (), 5)
            prompt = [*engine.held(0), 5, 6, 7, 8, 9, 10]
            assert list(cache.keep(len(prompt), 1.0, History())) == []
    (digest,) = (folder.name for folder in tmp_path.iterdir() if len(folder.name) == 64)
    assert len(SnapshotStore(tmp_path).of_model(digest).snapshots) == 2


@pytest.mark.parametrize("name", KINDS)
def test_a_conversation_left_for_another_comes_back_from_memory(
    engines: dict[str, tuple[Path, LlamaEngine]], tmp_path: Path, name: str
) -> None:
    path, engine = engines[name]
    cache = new_process(path, engine, tmp_path)
    one, other = words((1, 2, 1)), words((2, 3, 3))
    answer(cache, engine, one, (), 5)
    answer(cache, engine, other, (), 5)
    _, report, reused = answer(cache, engine, [*one, 5, 5], (), 5)
    assert reused == report.memory_tokens + report.checkpoint_tokens
    assert reused >= len(one) - 4


@pytest.mark.slow
@pytest.mark.parametrize("enabled", [True, False])
def test_quantized_gemma_answers_the_same_prompt_with_the_same_numbers(tmp_path: Path, enabled: bool) -> None:
    """Numbers depend on how a prompt is cut and on how its window lies in the cache: both are repeated."""
    engine = open_llama(gemma_path(), n_ctx=2048, n_ubatch=256)
    try:
        prompt = engine.tokenize("The river rises in spring. " * 200, add_special=True, parse_special=False)
        assert len(prompt) > 1024  # so that the window of 512 has moved on in its cells
        seen = []
        for cache_is_on in (enabled, True, True):
            cache = new_process(gemma_path(), engine, tmp_path)
            cache._enabled = cache_is_on
            logits, report, _ = answer(cache, engine, prompt, (500,), 20)
            seen.append((logits, report.disk_tokens))
            list(cache.keep(len(prompt), 1.0, None))
        assert [tokens for _, tokens in seen] == [0, len(prompt) - 4 if enabled else 0, len(prompt) - 4]
        assert seen[0][0] == seen[1][0] == seen[2][0]
    finally:
        engine.close()


def test_nothing_is_kept_beside_the_live_sequence_where_that_is_not_wanted(
    engines: dict[str, tuple[Path, LlamaEngine]], tmp_path: Path
) -> None:
    path, engine = engines["recurrent"]
    forget(engine)
    store = SnapshotStore(tmp_path / "prefix", 1 << 26)
    disk = DiskPrefixes(store, ModelFiles.now([path]), lambda: layout_settings(engine.facts, {}))
    cache = PrefixCache(engine, time.perf_counter, disk=disk, enabled=False)
    prompt = words((1, 2))
    assert answer(cache, engine, prompt, (10,), 3)[2] == 0
    assert answer(cache, engine, prompt, (10,), 3)[2] == 0
    assert list(cache.keep(len(prompt), 1.0, None)) == []
    assert not store.folder.exists()


def test_another_build_of_the_library_is_another_setting(tmp_path: Path) -> None:
    """Builds of a changed source may tell one version; so may one in another place, which is the same."""
    facts = ScriptedEngine(Script([[""]]), ContextParams()).facts
    sizes = {"here": 10, "elsewhere": 10, "rebuilt": 11}
    told = {}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
        told[name] = layout_settings(replace(facts, library=str(tmp_path / name)), {})
    assert told["here"] == told["elsewhere"] != told["rebuilt"]


def test_a_size_that_was_not_given_tells_nothing_but_what_turns_the_keys() -> None:
    facts = ScriptedEngine(Script([[""]]), ContextParams(n_ctx=1024)).facts
    larger = replace(facts, n_ctx=4096, n_ctx_seq=4096)
    told = [layout_settings(one, {}, sized=False) for one in (facts, larger, replace(larger, long_rope=True))]
    assert told[0] == told[1] != told[2]
    assert layout_settings(facts, {}) not in (layout_settings(larger, {}), told[0])
