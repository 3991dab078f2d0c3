"""What a context was through changes no answer: messages left out, or cells added, on real engines.

F32 models of each memory kind under greedy sampling, so that every token tells.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from operator import sub
from pathlib import Path

import pytest

from llmrun.app import plan
from llmrun.app.answer import decode, growth
from llmrun.app.chat import Chat
from llmrun.app.loading import OpenRequest
from llmrun.app.run import RunRequest, run
from llmrun.app.settings import SettingSources
from llmrun.app.worker import Stop
from llmrun.engine.api import ContextParams
from llmrun.engine.llama import LlamaEngine
from llmrun.errors import WriteFailure
from llmrun.events import Notice, Token
from llmrun.journal.sessions import SessionStore
from llmrun.memory.plan import DeviceInfo
from llmrun.metrics.clock import process_clock
from llmrun.units import GIB

from tests.support.engines import open_llama, run_one
from tests.support.models import smollm2_path
from tests.support.requests import CHAT_TEMPLATE, Answered
from tests.support.tiny import Arch, write_tiny

ARCHS: tuple[Arch, ...] = ("llama", "gemma3", "mamba", "falcon-h1")
TRAINED = 4096
EXACT = {"flash_attn": "off", "kv_type": "f32", "temperature": 0, "n_threads": 1, "n_ubatch": 16}
ENGINE = {"flash_attn": "off", "type_k": "f32", "type_v": "f32", "n_ubatch": 16}
NOISE: dict[Arch, float] = {"llama": 1e-4, "gemma3": 2e-2, "mamba": 1e-4, "falcon-h1": 1e-4}
"""Largest difference of logits between two orders of the same sums."""
N = 24


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[Arch, Path]:
    folder = tmp_path_factory.mktemp("tiny")
    return {a: write_tiny(folder / f"{a}.gguf", a, n_ctx=TRAINED, template=CHAT_TEMPLATE) for a in ARCHS}


class Rig:
    """Opens chats on real models, in folders of its own, and keeps the prompts that engines are given."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self.env = env
        self.prompts: list[list[int]] = []
        self.engines: list[LlamaEngine] = []
        self.resized: list[int] = []
        self._chats: list[Chat] = []

    def sources(self, flags: Mapping[str, object]) -> SettingSources:
        return SettingSources({**EXACT, **flags}, None, self.env)

    def chat(self, path: Path, stop: Stop | None = None, **flags: object) -> Chat:
        request = OpenRequest(str(path), self.sources(flags))
        store = SessionStore(Path(self.env["LLMRUN_DATA_DIR"]), lambda: datetime.now(UTC))
        session = store.unsaved(model="", system=str(flags.get("system") or ""))
        chat = Chat(request, session, process_clock(), stop or Stop(), watched=True)
        list(chat.open())
        self._chats.append(chat)
        return chat

    def run(self, path: Path, prompt: str, **flags: object) -> Answered:
        request = RunRequest(OpenRequest(str(path), self.sources(flags)), prompt)
        return Answered(tuple(run(request, process_clock(), Stop())))

    def close(self) -> None:
        for chat in self._chats:
            with suppress(WriteFailure):
                chat.close()


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    names = ("CONFIG", "DATA", "CACHE")
    made = Rig({f"LLMRUN_{name}_DIR": str(tmp_path / name.lower()) for name in names})
    engine_run, resize = LlamaEngine.run, LlamaEngine.resize

    def noted_run(self: LlamaEngine, jobs: object) -> object:
        if self not in made.engines:
            made.engines.append(self)
        made.prompts += [list(job.prompt) for job in jobs]  # type: ignore[attr-defined]
        return engine_run(self, jobs)  # type: ignore[arg-type]

    def noted_resize(self: LlamaEngine, n_ctx: int) -> bool:
        made.resized.append(n_ctx)
        return resize(self, n_ctx)

    monkeypatch.setattr(LlamaEngine, "run", noted_run)
    monkeypatch.setattr(LlamaEngine, "resize", noted_resize)
    monkeypatch.setattr(growth, "devices_now", lambda: (DeviceInfo("CPU", "cpu", 64 * GIB, 64 * GIB),))
    yield made
    made.close()


def say(chat: Chat, text: str) -> Answered:
    return Answered(tuple(chat.say(text)))


def words(number: int, count: int = 40) -> str:
    """A message that has little in common with the others."""
    return "".join(f" {chr(97 + (number * 7 + i * i) % 26)}{chr(97 + i % 26)}" for i in range(count))


@pytest.mark.parametrize("legible", [False, True])
@pytest.mark.parametrize("arch", ARCHS)
def test_after_messages_were_left_out_all_is_as_in_a_fresh_session_of_the_kept_ones(
    rig: Rig, tmp_path: Path, arch: Arch, legible: bool
) -> None:
    """Where the text of an answer gives other tokens than were sampled, only until there is a new answer: the
    sampled ones of that stay."""
    system = "SYS-7734"
    path = write_tiny(tmp_path / "m.gguf", arch, n_ctx=TRAINED, template=CHAT_TEMPLATE, legible=legible)
    chat = rig.chat(path, n_ctx=768, max_tokens=N, system=system)
    answers = [say(chat, words(number)) for number in range(14)]
    dropped = [answer.completion.dropped_messages // 2 for answer in answers]
    assert len(set(dropped)) >= 3  # left out twice at least
    turns = chat.session.turns
    firsts = [i for i in range(1, 14) if dropped[i] != dropped[i - 1]]
    for at in firsts if legible else (*firsts, 13):
        prompt, answer = rig.prompts[at], answers[at].completion
        fresh = rig.chat(path, n_ctx=768, max_tokens=N, system=system, prefix_cache=False)
        for turn in turns[dropped[at] : at]:
            fresh.session.add_turn(turn.user, turn.answer, finish_reason=turn.finish_reason)
        again = say(fresh, turns[at].user).completion
        assert rig.prompts[-1] == prompt
        assert again.stats.cached_tokens == 0
        assert again.text == answer.text


@pytest.mark.parametrize("arch", ARCHS)
def test_growth_between_turns_and_in_an_answer_changes_no_token(
    rig: Rig, paths: dict[Arch, Path], arch: Arch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "DEFAULT_CTX", 256)
    chat = rig.chat(paths[arch])
    large = open_llama(paths[arch], **ENGINE, n_ctx=TRAINED)
    plans = [(4, 20), (60, 20), (150, 20), (3, 700), (2, 20)]  # words of the message, tokens of the answer
    for number, (length, n) in enumerate(plans):
        chat.change("max_tokens", str(n))
        answered = say(chat, words(number, length)).completion
        assert answered.stats.generated_tokens == n
        assert answered.kv.tokens == answered.stats.prompt_tokens + n - 1
        assert answered.kv.capacity_tokens == answered.settings["n_ctx"] == chat.kv.capacity_tokens
        assert_chosen(large, list(rig.engines[0].held(0)), answered.stats.prompt_tokens, NOISE[arch])
    large.close()
    assert len(rig.resized) >= 3
    assert rig.resized == sorted(rig.resized)
    assert rig.resized[-1] == chat.kv.capacity_tokens <= TRAINED


def grown_in_the_middle(answered: Answered) -> bool:
    """Whether the context has grown between two tokens of the answer."""
    kinds = [type(event) for event in answered.events]
    notices = [at for at, event in enumerate(answered.events) if isinstance(event, Notice)]
    return any(Token in kinds[:at] and Token in kinds[at:] for at in notices)


SAMPLED = {"temperature": 0.8, "seed": 7, "repeat_penalty": 1.1, "prefix_cache": False}


# not of a window: sums over one that was moved are rounded otherwise
@pytest.mark.parametrize(
    ("arch", "repeat_last_n"), [("llama", 64), ("llama", -1), ("mamba", 64), ("falcon-h1", 64)]
)
def test_a_seed_draws_the_same_tokens_whether_the_context_grows_in_an_answer_or_not(
    rig: Rig, paths: dict[Arch, Path], arch: Arch, repeat_last_n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where repetitions of all that is in the context count, which is more in the larger one."""
    monkeypatch.setattr(plan, "DEFAULT_CTX", 768)
    sampled = {"max_tokens": 900, "repeat_last_n": repeat_last_n, **SAMPLED}
    grown = rig.run(paths[arch], "go", **sampled)
    large = rig.run(paths[arch], "go", n_ctx=1024, **sampled)
    assert grown_in_the_middle(grown)
    assert not grown_in_the_middle(large)
    assert grown.completion.text == large.completion.text
    assert grown.completion.stats.generated_tokens == 900


@pytest.mark.slow
def test_a_seed_draws_the_same_tokens_of_a_real_model(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "DEFAULT_CTX", 256)
    monkeypatch.setattr(decode, "ANSWER_ROOM", 4)
    usual = {"flash_attn": "auto", "kv_type": "f16", "n_ubatch": 512, "max_tokens": 60}
    prompt = "Write a story about " + "one man and another, " * 42
    grown = rig.run(smollm2_path(), prompt, **SAMPLED | usual)
    large = rig.run(smollm2_path(), prompt, n_ctx=1024, **SAMPLED | usual)
    assert grown_in_the_middle(grown)
    assert grown.completion.text == large.completion.text


def test_growth_beyond_the_short_factors_of_longrope_evaluates_again(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of a larger context are others from the first token on."""
    monkeypatch.setattr(plan, "DEFAULT_CTX", 256)
    path = write_tiny(tmp_path / "long.gguf", "llama", n_ctx=TRAINED, template=CHAT_TEMPLATE, short_rope=1024)
    chat = rig.chat(path)
    large = open_llama(path, **ENGINE, n_ctx=TRAINED)
    small = open_llama(path, **ENGINE, n_ctx=1024)
    reused = []
    for number, (length, n) in enumerate([(20, 20), (9, 20), (9, 1000), (20, 20), (2, 20)]):
        chat.change("max_tokens", str(n))
        answered = say(chat, words(number, length)).completion
        beyond = answered.kv.capacity_tokens > 1024
        assert rig.engines[0].facts.long_rope == beyond
        within = 100 if number == 2 else n  # of one answer that grows the context, the end alone
        start = answered.stats.prompt_tokens + n - within
        assert_chosen(large if beyond else small, list(rig.engines[0].held(0)), start, NOISE["llama"])
        reused.append(answered.stats.cached_tokens > 0)
    prompt = rig.prompts[0]
    assert max(map(abs, map(sub, run_one(small, prompt).logits, run_one(large, prompt).logits))) > 0.1
    small.close()
    large.close()
    assert reused == [False, True, True, True, True]
    assert rig.resized == [1024, 2048, 4096]  # the second in the middle of an answer


def assert_chosen(large: LlamaEngine, held: list[int], start: int, noise: float) -> None:
    """From `start` on, every token is one that a context which was large from the start would have chosen."""
    for end in range(start, len(held)):
        logits = run_one(large, held[:end]).logits
        assert max(logits) - logits[held[end]] < noise


@pytest.mark.parametrize("arch", ARCHS)
def test_one_long_prompt_opens_a_context_that_holds_it(
    rig: Rig, paths: dict[Arch, Path], arch: Arch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "DEFAULT_CTX", 256)
    kept: list[list[int]] = []
    close = LlamaEngine.close

    def noted_close(self: LlamaEngine) -> None:
        kept.append(list(self.held(0)))
        close(self)

    monkeypatch.setattr(LlamaEngine, "close", noted_close)
    grown = rig.run(paths[arch], words(1, 100), max_tokens=800).completion
    assert grown.stats.generated_tokens == 800
    assert len(rig.resized) == 2
    assert grown.kv.capacity_tokens == rig.resized[-1]
    with closing(open_llama(paths[arch], **ENGINE, n_ctx=TRAINED)) as large:
        assert_chosen(large, kept[0], grown.stats.prompt_tokens, NOISE[arch])


@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize("length", [3, 150])
def test_stopped_in_the_middle_of_a_growth(
    rig: Rig, paths: dict[Arch, Path], monkeypatch: pytest.MonkeyPatch, when: str, length: int
) -> None:
    """A long message makes it grow before the answer, a short one in the middle of it."""
    monkeypatch.setattr(plan, "DEFAULT_CTX", 768)
    stop, use = Stop(), LlamaEngine._use
    chat = rig.chat(paths["llama"], stop, max_tokens=900)
    pressed: list[str] = []

    def stopped(self: LlamaEngine, params: ContextParams) -> None:
        if when == "before":
            stop.press()
        use(self, params)
        stop.press()
        pressed.append(when)
        monkeypatch.setattr(LlamaEngine, "_use", use)

    monkeypatch.setattr(LlamaEngine, "_use", stopped)
    answered = say(chat, words(0, length)).completion
    assert pressed == [when]
    assert answered.finish_reason == "interrupted"
    assert bool(answered.text) == (length == 3)
    assert chat.kv.capacity_tokens > 768
    chat.change("max_tokens", "20")
    after = say(chat, words(1)).completion
    assert after.stats.generated_tokens == 20
    with closing(open_llama(paths["llama"], **ENGINE, n_ctx=TRAINED)) as large:
        assert_chosen(large, list(rig.engines[0].held(0)), after.stats.prompt_tokens, NOISE["llama"])
