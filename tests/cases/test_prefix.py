"""Public bug reports on prompt caches. The comment above a test names the report."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from llmrun.app.answer.turn import Ask, Turns
from llmrun.app.chat import Chat
from llmrun.app.loading import OpenRequest
from llmrun.app.settings import SettingSources
from llmrun.app.worker import Stop
from llmrun.engine.scripted import Script
from llmrun.events import Completion, Event
from llmrun.journal.sessions import SessionStore
from llmrun.metrics.clock import process_clock

from tests.support.cli import Cli
from tests.support.models import smollm2_path
from tests.support.prefixes import keep_everything, stored_files
from tests.support.puppet import byte_items, write_puppet
from tests.support.requests import CHAT_TEMPLATE, Answered, Desk, ScriptClock
from tests.support.tiny import write_tiny

GREEDY = ("--temp", "0")
EXACT = ("-fa", "off", "--kv-type", "f32")
THINKING = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|go|>{{ m.content.split('</think>')[-1].strip() }}"
    "{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}\n{% endfor %}<|go|>"
)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A random F32 model, whose greedy text shows any wrong value in the cache."""
    return write_tiny(tmp_path / "tiny.gguf", "llama", n_ctx=2048)


def real_chat(folder: Path, model: Path, **flags: object) -> Chat:
    """A chat on the real engine."""
    env = {f"LLMRUN_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "CACHE")}
    settings = {"temperature": 0, "n_threads": 1, "prefix_cache_mib": "0", **flags}
    request = OpenRequest(str(model), SettingSources(settings, None, env))
    session = SessionStore(folder / "data", lambda: datetime.now(UTC)).unsaved(model="", system="")
    chat = Chat(request, session, process_clock(), Stop())
    list(chat.open())
    return chat


def say(chat: Chat, text: str) -> Completion:
    return Answered(tuple(chat.say(text))).completion


# abetlen/llama-cpp-python#1369, ggml-org/llama.cpp#11970, oobabooga/textgen#866
class TestThePreviousAnswerIsNotEvaluatedAgain:
    def test_text_that_tokenises_otherwise_than_it_was_written(self, tmp_path: Path) -> None:
        puppet = write_puppet(
            tmp_path / "p.gguf", ["un", "be", "liev", "able", *byte_items("\n!")], template=CHAT_TEMPLATE
        )
        with closing(real_chat(tmp_path, puppet.path)) as chat:
            held = 0
            for turn in range(5):
                one = say(chat, f"question {turn}")
                assert one.text == "unbelievable\n!"
                if turn:
                    assert one.stats.cached_tokens >= held
                    assert one.stats.prefill_tokens <= len(f"question {turn}") + 30
                held = one.kv.tokens

    @pytest.mark.slow
    def test_smollm2(self, tmp_path: Path) -> None:
        with closing(real_chat(tmp_path, smollm2_path(), max_tokens=24)) as chat:
            held = 0
            for text in ("Name a river.", "And another.", "Which is longer?", "Why?", "Thank you."):
                one = say(chat, text)
                assert one.stats.prefill_tokens <= len(text) + 30
                assert one.stats.cached_tokens >= held - 1
                held = one.kv.tokens


# ggml-org/llama.cpp#22746, QwenLM/Qwen3.8#131
class TestTemplateThatDropsThoughts:
    def turns(self, desk: Desk, template: str) -> list[Completion]:
        reply = ["<think>", "a long thought", "</think>", "answer ", "text"]
        file = desk.model.with_name("thinking.jinja")
        file.write_text(template)
        clock = ScriptClock()
        request = OpenRequest(str(desk.chat_model), desk.sources(), file)
        store = SessionStore(desk.model.parent, lambda: datetime.now(UTC))
        factory = desk.factory(Script([reply] * 3), clock)
        chat = Chat(request, store.unsaved(model="", system=""), clock.clock, Stop(), factory)
        list(chat.open())
        desk.chats.append(chat)
        return [say(chat, f"question {turn}") for turn in range(3)]

    def test_counters_are_honest_and_the_reason_is_told(self, desk: Desk) -> None:
        one, two, three = self.turns(desk, THINKING)
        assert (one.text, one.reasoning) == ("answer text", "a long thought")
        kept = len("<|user|>question 0<|go|>")
        assert two.stats.cached_tokens == two.prefix.memory_tokens == kept
        assert two.stats.prompt_tokens == two.stats.cached_tokens + two.stats.prefill_tokens
        assert three.stats.cached_tokens == len("<|user|>question 0<|go|>answer text<|user|>question 1<|go|>")
        for later in (two, three):
            assert later.prefix.miss_reason.startswith("template rewrote history")
            assert later.prefix.difference is not None
            assert later.prefix.difference.stored.startswith("<think>")
            assert later.prefix.difference.prompt.startswith("answer")

    def test_a_template_that_keeps_them_loses_nothing(self, desk: Desk) -> None:
        keeping = THINKING.replace(
            "m.content.split('</think>')[-1].strip()",
            "'<think>' ~ m.reasoning_content ~ '</think>' ~ m.content",
        )
        one, two, _ = self.turns(desk, keeping)
        assert two.stats.cached_tokens >= one.kv.tokens
        assert two.prefix.miss_reason == ""


# ollama/ollama#3427, #2068 and #5370
class TestCountsOfCachedPrompts:
    def check(self, documents: list[dict[str, Any]]) -> None:
        first, second = documents
        for document in documents:
            usage, timings = document["usage"], document["timings"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            assert usage["prompt_tokens"] == first["usage"]["prompt_tokens"] > 1
            assert timings["cache_n"] == cached
            assert timings["prompt_n"] == usage["prompt_tokens"] - cached >= 1
            assert (
                sum(document["prefix_cache"][f"{o}_tokens"] for o in ("memory", "checkpoint", "disk"))
                == cached
            )
        assert first["timings"]["cache_n"] == 0
        assert second["timings"]["prompt_n"] == 1
        assert first["text"] == second["text"]

    def test_through_the_disk(self, caching: Cli, tiny: Path) -> None:
        words = ("some words to begin with", *GREEDY, *EXACT, "-n", "8", "--json", "--raw")
        documents = [caching.here("run", tiny, *words).document for _ in range(2)]
        self.check(documents)
        assert documents[0]["prefix_cache"]["miss_reason"] == "nothing stored"
        assert documents[1]["prefix_cache"]["disk_tokens"] == documents[1]["timings"]["cache_n"]

    def test_in_one_chat(self, tmp_path: Path, tiny: Path) -> None:
        with closing(real_chat(tmp_path, tiny, max_tokens=8, n_ubatch=16)) as chat:
            one = say(chat, "the same")
            two = Answered(tuple(chat.regenerate())).completion
        assert one.stats.prompt_tokens == two.stats.prompt_tokens
        assert two.stats.cached_tokens == two.stats.prompt_tokens - 1
        assert one.text == two.text


# ggml-org/llama.cpp#15215 and #2350, go-skynet/go-llama.cpp PR#74
class TestForeignStates:
    PROMPT = "a prompt that is long enough to be told from others"

    @pytest.fixture
    def model(self, tiny: Path) -> Path:
        return tiny

    def run(self, cli: Cli, model: Path, *flags: str) -> tuple[str, dict[str, Any], str]:
        words = ("run", str(model), self.PROMPT, "--raw", *GREEDY, *EXACT, "-n", "8", "--json", *flags)
        ended = cli.here(*words)
        assert ended.status == 0
        return ended.document["text"], ended.document["prefix_cache"], ended.err

    @pytest.mark.parametrize(
        ("flags", "named"),
        [(("-c", "256"), "n_ctx"), (("--kv-type", "f16"), "type_k"), (("-fa", "on"), "flash_attn")],
    )
    def test_of_other_settings(self, caching: Cli, model: Path, flags: tuple[str, ...], named: str) -> None:
        cold, report, _ = self.run(caching, model, *flags, "--no-prefix-cache")
        assert report["disk_tokens"] == 0
        self.run(caching, model, "-c", "512")
        before = {path: path.read_bytes() for path in stored_files(caching)}
        text, report, err = self.run(caching, model, "-c", "512", *flags)
        assert (text, report["disk_tokens"]) == (cold, 0)
        assert report["miss_reason"].startswith("settings changed")
        assert f"{named} was" in report["miss_reason"]
        assert err == ""
        assert all(path.read_bytes() == data for path, data in before.items())

    def test_the_nearest_settings_are_named(self, caching: Cli, model: Path) -> None:
        for flags in ((), ("--swa-full",), ("--swa-full", "--kv-type", "f16")):
            self.run(caching, model, *flags)
        _, report, _ = self.run(caching, model, "-np", "2")
        assert report["miss_reason"] == "settings changed: n_parallel was 1, is 2"

    def test_sizes_that_were_not_given_are_no_settings(self, caching: Cli, model: Path) -> None:
        cold, _, _ = self.run(caching, model)
        text, report, _ = self.run(caching, model, "-c", "max")
        assert text == cold
        assert report["disk_tokens"] > 0

    def test_of_another_model_in_the_same_place(self, caching: Cli, model: Path) -> None:
        self.run(caching, model)
        other = write_tiny(model.with_name("other.gguf"), "llama", seed=1, n_ctx=2048)
        cold, _, _ = self.run(caching, other, "--no-prefix-cache")
        shutil.copyfile(other, model)
        text, report, _ = self.run(caching, model)
        assert (text, report["miss_reason"]) == (cold, "nothing stored")

    def test_of_a_model_that_gave_way_to_another_while_it_was_open(
        self, caching: Cli, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What the old weights have computed is not kept under the name of the new ones."""
        new = write_tiny(model.with_name("other.gguf"), "llama", seed=1, n_ctx=2048)
        cold, _, _ = self.run(caching, new, "--no-prefix-cache")

        def replaced(self: Turns, ask: Ask) -> Iterator[Event]:
            new.replace(model)
            return answer(self, ask)

        with monkeypatch.context() as patch:
            answer = Turns.answer
            patch.setattr(Turns, "answer", replaced)
            self.run(caching, model)
        assert not stored_files(caching)
        self.run(caching, model)
        text, report, _ = self.run(caching, model)
        assert text == cold
        assert report["disk_tokens"] > 0

    def test_a_file_of_another_model_under_the_right_name(self, caching: Cli, model: Path) -> None:
        cold, _, _ = self.run(caching, model)
        (right,) = stored_files(caching)
        other = write_tiny(model.with_name("other.gguf"), "llama", seed=1, n_ctx=2048)
        self.run(caching, other)
        (foreign,) = set(stored_files(caching)) - {right}
        shutil.copyfile(foreign, right)
        text, report, err = self.run(caching, model)
        assert (text, report["disk_tokens"]) == (cold, 0)
        assert err.count("\n") == 1
        assert self.run(caching, model)[1]["disk_tokens"] > 0

    @pytest.mark.parametrize("damage", ["cut", "flipped", "emptied"])
    def test_damaged(self, caching: Cli, model: Path, damage: str) -> None:
        cold, _, _ = self.run(caching, model)
        (stored,) = stored_files(caching)
        data = bytearray(stored.read_bytes())
        data[-1000] ^= 1
        changed: dict[str, bytes] = {"cut": bytes(data[:-1000]), "flipped": bytes(data), "emptied": b""}
        stored.write_bytes(changed[damage])
        text, report, err = self.run(caching, model)
        assert (text, report["disk_tokens"], report["miss_reason"]) == (cold, 0, "state damaged")
        assert err.count("\n") == 1
        text, report, err = self.run(caching, model)
        assert (text, err) == (cold, "")
        assert report["disk_tokens"] > 0


# ggml-org/llama.cpp#1585, #2479 and #1257
class TestTheCacheChangesNoAnswer:
    @pytest.fixture(params=["tiny", pytest.param("smollm2", marks=pytest.mark.slow)])
    def words(self, request: pytest.FixtureRequest, tiny: Path) -> tuple[str, ...]:
        model, n = (tiny, "16") if request.param == "tiny" else (smollm2_path(), "6")
        return ("run", str(model), "--raw", *GREEDY, *EXACT, "-n", n, "--json")

    def test_longer_equal_and_other_last_token(self, caching: Cli, words: tuple[str, ...]) -> None:
        a = "The boats are carried up to the old mill before the river"
        prompts = {"A": a, "AB": a + " rises. Nobody knows how long it will", "A'": a[:-5] + "water"}
        cold = {
            name: caching.here(*words, text, "--no-prefix-cache").document for name, text in prompts.items()
        }
        assert not stored_files(caching)
        cached = []
        for name in ("A", "AB", "A'", "A", "AB"):
            warm = caching.here(*words, prompts[name]).document
            assert warm["text"] == cold[name]["text"]
            assert warm["timings"]["prompt_n"] >= 1
            cached.append(warm["timings"]["cache_n"])
        assert cached[0] == 0
        assert min(cached[1:]) > 0

    @pytest.mark.slow
    def test_the_same_command_gives_the_same_logits_of_a_quantized_model(self, caching: Cli) -> None:
        text = " ".join(f"Line {number} of the report says that all is well." for number in range(40))
        words = ("run", str(smollm2_path()), *GREEDY, "-n", "8", "--logprobs", "1", "--json", text)
        cold = caching.here(*words, "--no-prefix-cache").document
        runs = [caching.here(*words).document for _ in range(3)]
        assert runs[-1]["prefix_cache"]["disk_tokens"] == runs[-1]["usage"]["prompt_tokens"] - 1
        for document in runs:
            assert document["logprobs"] == cold["logprobs"]


# a full disk, and a folder that cannot be written, touch no answer
class TestNoRoom:
    def test_the_answer_is_the_same_with_one_note(
        self, caching: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from llmrun.store import snapshots

        words = ("run", str(tiny), "some words", "--raw", *GREEDY, "-n", "4")
        answer = caching.here(*words, "--no-prefix-cache")

        def full(path: Path, **_: object) -> None:
            raise OSError(28, os.strerror(28), str(path))

        monkeypatch.setattr(snapshots, "write_snapshot", full)
        ended = caching.here(*words)
        assert (ended.status, ended.out) == (answer.status, answer.out)
        assert ended.err.count("\n") == 1
        assert "No space left" in ended.err
        assert not stored_files(caching)

    def test_a_folder_in_the_way(self, caching: Cli, tiny: Path) -> None:
        caching.cache.mkdir()
        (caching.cache / "prefix").write_text("a file")
        ended = caching.here("run", tiny, "some words", "--raw", *GREEDY, "-n", "4")
        assert ended.status == 0
        assert ended.err.count("\n") == 1


class TestResumedChats:
    """A chat that is left and gone on with evaluates what it would have without leaving."""

    @pytest.fixture
    def folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        keep_everything(monkeypatch)
        return tmp_path

    def resume(self, folder: Path, model: Path, before: Chat | None, **flags: object) -> Chat:
        env = {f"LLMRUN_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "CACHE")}
        settings = {"temperature": 0, "n_threads": 1, **flags}
        request = OpenRequest(str(model), SettingSources(settings, None, env))
        store = SessionStore(folder / "data", lambda: datetime.now(UTC))
        turns = before.session.turns if before else ()
        session = store.unsaved(model="", system="", turns=turns)
        chat = Chat(request, session, process_clock(), Stop())
        list(chat.open())
        return chat

    def test_the_tokens_that_were_written_are_found_again(self, folder: Path) -> None:
        """Read back as text, this answer would be other tokens than those the model wrote."""
        puppet = write_puppet(folder / "p.gguf", ["un", "be", "liev", "able"], template=CHAT_TEMPLATE).path
        with closing(self.resume(folder, puppet, None)) as chat:
            say(chat, "one")
            say(chat, "two")
            held = chat.kv.tokens
        with closing(self.resume(folder, puppet, chat)) as resumed:
            three = say(resumed, "three")
        assert three.text == "unbelievable"
        assert three.prefix.disk_tokens == three.stats.cached_tokens == held
        assert three.stats.prefill_tokens < len("three") + 30

    def test_a_chat_whose_last_answer_was_stopped_is_kept_too(self, folder: Path) -> None:
        puppet = write_puppet(folder / "p.gguf", ["ok"], template=CHAT_TEMPLATE).path
        with closing(self.resume(folder, puppet, None)) as chat:
            say(chat, "one")
            held = chat.kv.tokens
            chat._stop.press()
            for path in folder.glob("cache/prefix/*/*.prefix"):
                path.unlink()
        with closing(self.resume(folder, puppet, chat)) as resumed:
            assert say(resumed, "two").prefix.disk_tokens == held

    def test_a_chat_that_cannot_keep_its_prefix_closes_all_the_same(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also when it is closed twice: the engine is gone by then."""
        puppet = write_puppet(folder / "p.gguf", ["ok"]).path
        chat = self.resume(folder, puppet, None)
        (folder / "cache").mkdir(exist_ok=True)
        (folder / "cache" / "prefix").write_text("in the way")
        say(chat, "one")
        chat.close()
        chat.close()

    def test_nothing_is_written_where_nothing_shall_be_kept(self, folder: Path) -> None:
        puppet = write_puppet(folder / "p.gguf", ["ok"]).path
        for flags in ({"prefix_cache_mib": "0"}, {"prefix_cache": "off"}):
            with closing(self.resume(folder, puppet, None, **flags)) as chat:
                say(chat, "one")
        assert not (folder / "cache" / "prefix").exists()

    def test_a_chat_with_no_save_leaves_no_trace(self, caching: Cli, tmp_path: Path) -> None:
        puppet = write_puppet(tmp_path / "p.gguf", ["ok"]).path
        assert caching.here("chat", puppet, *GREEDY, "--no-save", stdin=b"hello").text.strip() == "ok"
        assert not stored_files(caching)
        assert caching.here("chat", puppet, *GREEDY, stdin=b"hello").text.strip() == "ok"
        assert stored_files(caching)
