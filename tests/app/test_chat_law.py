"""Whatever is done in a chat, in whatever order, every token is the one a cold run would have chosen.

Random commands on small F32 models of each memory kind, with a cache that keeps everything: messages, answers
again, taken back, edited and stopped, other conversations and other models, the end of the process; under
contexts that grow, drop messages, or have them summed up.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from llmrun.app import plan
from llmrun.app.chat import Chat
from llmrun.app.loading import OpenRequest
from llmrun.app.settings import SettingSources
from llmrun.app.worker import Stop
from llmrun.engine.api import Job, Run
from llmrun.engine.llama import LlamaEngine
from llmrun.errors import PromptTooLong
from llmrun.events import Completion, Event, Finished
from llmrun.journal.session_records import Turn
from llmrun.journal.sessions import SessionStore
from llmrun.metrics.clock import process_clock

from tests.support.engines import EXACT, open_llama, run_one
from tests.support.prefixes import keep_everything
from tests.support.requests import CHAT_TEMPLATE
from tests.support.tiny import Arch, write_tiny

NOISE: dict[Arch, float] = {"llama": 2e-4, "gemma3": 3e-2, "mamba": 2e-4, "falcon-h1": 2e-4}
"""Largest difference of logits between two orders of the same sums."""

FORGETFUL = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|go|>{{ m.content.split('a')[-1].strip() }}"
    "{% else %}<|{{ m.role }}|>{{ m.content }}{% endif %}\n{% endfor %}<|go|>"
)
"""A template that leaves parts of earlier answers out."""

COMMANDS = ["say"] * 6 + ["regen", "undo", "edit", "clear", "load", "model", "resume", "stop"]
STEPS = 14


class Monkey:
    """Types at random into a chat."""

    def __init__(self, folder: Path, arch: Arch, seed: int) -> None:
        self.random = random.Random(seed)
        self.template = self.random.choice([CHAT_TEMPLATE, CHAT_TEMPLATE, FORGETFUL])
        legible = self.random.random() < 0.8  # bytes that are no text have to be tokenised again
        self.models = [
            write_tiny(
                folder / f"{n}.gguf", arch, seed=n, n_ctx=2048, template=self.template, legible=legible
            )
            for n in (0, 1)
        ]
        self.system = self.random.choice(["", " be so kind " * 3])
        self.env = {f"LLMRUN_{name}_DIR": str(folder / name.lower()) for name in ("CONFIG", "DATA", "CACHE")}
        self.store = SessionStore(folder / "data", lambda: datetime.now(UTC))
        self.left: list[tuple[Turn, ...]] = [()]
        self.messages = [self.words() for _ in range(3)]
        self.chat = self.open((), str(self.models[0]))

    def flags(self) -> Mapping[str, object]:
        chosen: dict[str, object] = {"overflow": self.random.choice(["drop", "drop", "summarize"])}
        if self.random.random() < 0.5:
            chosen["n_ctx"] = self.random.choice([256, 512])
        exact = {"flash_attn": "off", "kv_type": "f32", "temperature": 0, "n_threads": 1, "n_ubatch": 16}
        return {**exact, **chosen, "max_tokens": self.random.choice([8, 30, 120])}

    def open(self, turns: tuple[Turn, ...], model: str) -> Chat:
        self.stop = Stop()
        request = OpenRequest(model, SettingSources(self.flags(), None, self.env))
        session = self.store.unsaved(model="", system=self.system, turns=turns)
        chat = Chat(request, session, process_clock(), self.stop)
        list(chat.open())
        return chat

    def words(self) -> str:
        count = self.random.choice([2, 9, 30, 50])
        return "".join(f" {chr(97 + self.random.randrange(4))}{chr(97 + i % 26)}" for i in range(count))

    def do(self, command: str) -> Iterator[Event]:
        """The events of an answer, none where a command asks for none."""
        chat, turns = self.chat, self.chat.session.turns
        match command:
            case "say" | "stop":
                return chat.say(self.random.choice([*self.messages, self.words()]))
            case "regen" if turns:
                return chat.regenerate()
            case "undo" | "edit" if turns:
                chat.session.undo()
                return chat.say(self.words()) if command == "edit" else iter(())
            case "clear":
                self.left.append(turns)
                chat.session.clear()
            case "load":
                kept = self.random.choice(self.left)
                chat.session = self.store.unsaved(model="", system=self.system, turns=kept)
            case "model":
                list(chat.switch(str(self.random.choice(self.models))))
            case "resume":
                self.left.append(turns)
                chat.close()
                self.chat = self.open(turns, chat.model.path)
        return iter(())

    def close(self) -> None:
        self.chat.close()

    def stopped(self, events: Iterator[Event]) -> None:
        """Ctrl-C at a random event."""
        at = self.random.randint(1, 12)
        with suppress(PromptTooLong):
            for number, _ in enumerate(events):
                if number == at:
                    self.stop.press()


class Cold:
    """Contexts that were large from the start and never saw anything else."""

    def __init__(self, models: list[Path]) -> None:
        self._engines = {str(path): open_llama(path, **EXACT, n_ctx=2048, n_ubatch=16) for path in models}

    def logits(self, model: str, tokens: list[int]) -> list[float]:
        return run_one(self._engines[model], tokens).logits

    def close(self) -> None:
        for engine in self._engines.values():
            engine.close()


def answered(events: Iterator[Event], used: list[LlamaEngine]) -> tuple[Completion, list[int]] | None:
    """An answer and what its sequence held when it was complete, before anything was read ahead."""
    found = None
    with suppress(PromptTooLong):
        for event in events:
            if isinstance(event, Finished):
                found = event.completion, list(used[-1].held(0))
    return found


SEEDS = (1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 13)))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("arch", NOISE)
def test_any_commands_in_any_order_change_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arch: Arch, seed: int
) -> None:
    keep_everything(monkeypatch)
    monkeypatch.setattr(plan, "DEFAULT_CTX", 256)
    used: list[LlamaEngine] = []
    engine_run = LlamaEngine.run

    def noted_run(self: LlamaEngine, jobs: Sequence[Job]) -> Run:
        used.append(self)
        return engine_run(self, jobs)

    monkeypatch.setattr(LlamaEngine, "run", noted_run)
    monkey = Monkey(tmp_path, arch, seed)
    reused = 0
    with closing(monkey), closing(Cold(monkey.models)) as cold:
        for command in ("say", "regen", *monkey.random.choices(COMMANDS, k=STEPS)):
            events = monkey.do(command)
            if command == "stop":
                monkey.stopped(events)
                continue
            answer = answered(events, used)
            if answer is None:
                continue
            completion, held = answer
            start = completion.stats.prompt_tokens
            reused += completion.stats.cached_tokens
            for end in range(start, len(held)):
                logits = cold.logits(monkey.chat.model.path, held[:end])
                assert max(logits) - logits[held[end]] < NOISE[arch], (command, end - start)
    assert reused
