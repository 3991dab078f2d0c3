"""A context without a given size grows with its conversation, as far as model and memory allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.app import plan
from llmrun.app.answer import growth
from llmrun.app.answer.growth import Growth
from llmrun.app.chat import Chat
from llmrun.app.memory.offload import Budget
from llmrun.engine.api import CacheBlock, ContextParams, EngineFacts
from llmrun.engine.scripted import Script, ScriptedEngine
from llmrun.events import Notice
from llmrun.memory.plan import DeviceInfo
from llmrun.units import GIB, KIB, MIB

from tests.support.puppet import write_puppet
from tests.support.requests import CHAT_TEMPLATE, Answered, Desk

TRAINED = 32768
NO_RESERVE = Budget(reserve_bytes=0)


def facts(n_ctx: int, **changed: object) -> EngineFacts:
    """A context of 1 KiB a cell on the CPU, 4 KiB on a card."""
    made = ScriptedEngine(Script([[""]], n_ctx_train=TRAINED), ContextParams(n_ctx=n_ctx)).facts
    blocks = (
        CacheBlock("full", "CPU", n_ctx * KIB, n_ctx),
        CacheBlock("full", "GPU0", 4 * n_ctx * KIB, n_ctx),
        CacheBlock("swa", "GPU0", 16 * MIB, 1024),
    )
    return replace(made, cache_blocks=blocks, **changed)  # type: ignore[arg-type]


def with_free(cpu_bytes: int, gpu_bytes: int, budget: Budget = NO_RESERVE) -> Growth:
    devices = (
        DeviceInfo("CPU", "cpu", cpu_bytes, cpu_bytes),
        DeviceInfo("GPU0", "gpu", gpu_bytes, gpu_bytes),
    )
    return Growth(budget, lambda: devices)


def test_an_integrated_gpu_grows_in_main_memory() -> None:
    """8,192 cells more are 8 MiB on the CPU and 32 MiB on the GPU; the copy meanwhile is 56 MiB."""

    def inside(free_bytes: int) -> Growth:
        devices = (
            DeviceInfo("CPU", "cpu", free_bytes, GIB),
            DeviceInfo("GPU0", "igpu", GIB, GIB),
        )
        return Growth(NO_RESERVE, lambda: devices)

    assert inside(96 * MIB).size_for(16384, facts(8192)) == 16384
    assert inside(96 * MIB - 1).size_for(16384, facts(8192)) is None


@given(st.integers(1, 2 * TRAINED), st.sampled_from([256, 8192, 16384, TRAINED]))
def test_it_doubles_and_holds_what_is_needed(needed: int, now: int) -> None:
    size = with_free(64 * GIB, 64 * GIB).size_for(needed, facts(now))
    if needed <= now or now == TRAINED:
        assert size is None
    else:
        assert size is not None
        assert size == TRAINED or size >= needed > size // 2
        assert size == TRAINED or (size // now).bit_count() == 1 == size % now + 1


@given(st.integers(0, 256 * MIB), st.integers(0, 256 * MIB), st.integers(8193, TRAINED))
def test_it_never_takes_more_than_is_free_and_takes_what_suffices(cpu: int, gpu: int, needed: int) -> None:
    now = facts(8192)
    copies = sum(block.size_bytes for block in now.cache_blocks)

    def fits(size: int) -> bool:
        return (size - 8192) * KIB + copies <= cpu and 4 * (size - 8192) * KIB <= gpu

    size = with_free(cpu, gpu).size_for(needed, now)
    least = -(-needed // 256) * 256
    if size is None:
        assert not fits(least)
    else:
        assert fits(size)
        assert size >= least


def test_the_reserve_stays_free_and_a_named_device_has_what_was_said() -> None:
    now = facts(8192, compute_bytes={"GPU0": 8 * MIB}, weights_bytes={"GPU0": 100 * MIB})
    # GPU0 holds 100 + 8 + 32 + 16 = 156 MiB; twice the cells take 32 + 8 more
    for total, size in ((196 * MIB, 16384), (195 * MIB, None)):
        named = Budget((("GPU0", total),), reserve_bytes=0)
        assert with_free(GIB, 0, named).size_for(16384, now) == size
    assert with_free(GIB, 41 * MIB, Budget(reserve_bytes=MIB)).size_for(16384, now) == 16384
    assert with_free(GIB, 40 * MIB, Budget(reserve_bytes=MIB)).size_for(16384, now) is None


def test_sequences_with_cells_of_their_own_grow_together() -> None:
    now = replace(facts(4096), kv_unified=False, n_seq=2, n_ctx=8192)
    assert with_free(64 * GIB, 64 * GIB).size_for(5000, now) == 2 * 8192


class TestConversation:
    @pytest.fixture
    def long_desk(self, desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
        path = tmp_path / "long.gguf"
        desk.chat_model = write_puppet(path, ["never said"], template=CHAT_TEMPLATE, n_ctx=TRAINED).path
        self.free_bytes = 64 * GIB
        monkeypatch.setattr(
            growth, "devices_now", lambda: (DeviceInfo("CPU", "cpu", self.free_bytes, 64 * GIB),)
        )
        return desk

    def chat(self, desk: Desk, reply: Sequence[str], **flags: object) -> Chat:
        return desk.chat([reply], None, watched=False, n_ctx_train=TRAINED, **flags)

    def say(self, chat: Chat, text: str) -> Answered:
        return Answered(tuple(chat.say(text)))

    def test_a_long_message_makes_it_grow_before_it_is_read(self, long_desk: Desk) -> None:
        chat = self.chat(long_desk, ["fine"])
        assert self.say(chat, "a").completion.settings["n_ctx"] == 8192
        second = self.say(chat, "b" * 9000)
        assert second.completion.settings["n_ctx"] == second.completion.kv.capacity_tokens == 16384
        assert second.completion.stats.cached_tokens > 0
        assert second.completion.dropped_messages == 0
        assert any("grown" in e.text for e in second.events if isinstance(e, Notice))

    def test_an_answer_goes_on_where_the_context_was_full(self, long_desk: Desk) -> None:
        chat = self.chat(long_desk, [*["x"] * 9000, "fi", "ne"])
        answered = self.say(chat, "go").completion
        assert answered.finish_reason == "stop"
        assert answered.kv.capacity_tokens == 16384
        assert answered.text == "x" * 9000 + "fine"
        assert answered.stats.generated_tokens == 9003
        assert answered.kv.tokens == answered.stats.prompt_tokens + answered.stats.generated_tokens - 1

    def test_the_meter_counts_the_answer_in_the_context_as_it_is_now(self, long_desk: Desk) -> None:
        chat = long_desk.chat([["x"] * 20_000], None, n_ctx_train=TRAINED, watched=True, max_tokens=12_000)
        answered = self.say(chat, "go").completion
        use = answered.context
        assert use is not None
        assert use.answer_tokens == answered.stats.generated_tokens
        assert use.capacity_tokens == answered.kv.capacity_tokens == 16384
        assert use.free_tokens == 16384 - answered.stats.prompt_tokens - answered.stats.generated_tokens

    @pytest.mark.parametrize("before_full", range(14))
    def test_reasoning_is_closed_also_across_a_growth(
        self, long_desk: Desk, monkeypatch: pytest.MonkeyPatch, before_full: int
    ) -> None:
        """The ten tokens that close it begin some tokens before the context is full."""
        monkeypatch.setattr(plan, "DEFAULT_CTX", 768)
        reply = ["<think>", *["x"] * 900, "yz"]
        budget = 768 - len("<|user|>go\n<|go|>") + 1 - before_full
        chat = self.chat(long_desk, reply, think_budget=budget)
        answered = self.say(chat, "go").completion
        assert len(answered.reasoning + answered.text) == 902
        assert set(answered.reasoning) == {"x"}
        assert answered.text.strip("x") == "yz"

    def test_an_endless_answer_ends_at_the_trained_length(self, long_desk: Desk) -> None:
        answered = self.say(self.chat(long_desk, ["x"] * TRAINED), "go").completion
        assert answered.finish_reason == "context"
        assert answered.kv.tokens == answered.kv.capacity_tokens == TRAINED

    def test_a_given_size_stays(self, long_desk: Desk) -> None:
        chat = self.chat(long_desk, ["fine"], n_ctx=512)
        self.say(chat, "a" * 400)
        second = self.say(chat, "b" * 300).completion
        assert second.kv.capacity_tokens == 512
        assert second.dropped_messages == 2

    def test_where_memory_is_short_the_policy_decides(self, long_desk: Desk) -> None:
        chat = self.chat(long_desk, ["fine"])
        self.free_bytes = 0
        self.say(chat, "a" * 5000)
        second = self.say(chat, "b" * 5000).completion
        assert second.kv.capacity_tokens == 8192
        assert second.dropped_messages == 2
