"""Whole requests in this process: a scripted engine behind the real pipeline, on a clock of the test's."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from llmrun.app.chat import Chat
from llmrun.app.loading import OpenRequest
from llmrun.app.run import RunRequest, run
from llmrun.app.settings import SettingSources
from llmrun.app.worker import Stop
from llmrun.engine.api import ContextParams, Engine, EngineFactory, ModelParams
from llmrun.engine.scripted import Script, ScriptedEngine, scripted_factory
from llmrun.errors import WriteFailure
from llmrun.events import Completion, Event, Finished, Notice, Token
from llmrun.journal.sessions import SessionStore

from tests.support.puppet import write_puppet

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ '<|go|>' if m.role == 'assistant' else '<|' + m.role + '|>' }}"
    "{{ m.content }}\n{% endfor %}<|go|>"
)
"""Puts before a past answer what it put before the answer to come, so that the K/V of past turns fits."""


class SetClock:
    """Seconds that pass only when told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass(slots=True)
class ScriptClock:
    """A clock that takes each prefill slice and token of a script for the given time."""

    prefill_s: float = 0.0
    tokens_s: Sequence[float] = ()
    clock: SetClock = field(default_factory=SetClock)
    _sampled: int = 0

    def tick(self, event: str) -> None:
        if event == "prefill":
            self.clock.now_s += self.prefill_s
        elif self._sampled < len(self.tokens_s):
            self.clock.now_s += self.tokens_s[self._sampled]
            self._sampled += 1


@dataclass(frozen=True, slots=True)
class Answered:
    """The events of one request, and what is read from them most."""

    events: tuple[Event, ...]

    @property
    def completion(self) -> Completion:
        (finished,) = [event for event in self.events if isinstance(event, Finished)]
        return finished.completion

    @property
    def tokens(self) -> list[Token]:
        return [event for event in self.events if isinstance(event, Token)]

    def streamed(self, kind: str) -> str:
        """All text of one kind, as it streamed."""
        return "".join(token.text for token in self.tokens if token.kind == kind)

    def notices(self, level: str) -> list[str]:
        return [e.text for e in self.events if isinstance(e, Notice) and e.level == level]


@dataclass(slots=True)
class Desk:
    """Opens scripted models behind the header of a model file, with data and config folders of its own."""

    model: Path
    chat_model: Path
    env: Mapping[str, str]
    engines: list[ScriptedEngine] = field(default_factory=list)
    chats: list[Chat] = field(default_factory=list)

    def sources(self, **flags: object) -> SettingSources:
        """Settings by name, as flags give them."""
        return SettingSources(flags, None, self.env)

    def factory(self, script: Script, clock: ScriptClock) -> EngineFactory:
        """Opens the script and remembers the engine."""
        make = scripted_factory(script, clock.tick)

        def open_and_keep(model: ModelParams, context: ContextParams, *rest: object) -> Engine:
            engine = make(model, context, *rest)  # type: ignore[arg-type]
            self.engines.append(engine)
            return engine

        return open_and_keep

    def run(
        self,
        reply: Iterable[str | bytes],
        prompt: str = "x",
        *,
        raw: bool = False,
        template: str | None = None,
        clock: ScriptClock | None = None,
        specials: tuple[str, ...] = ("<|end|>",),
        **flags: object,
    ) -> Answered:
        """One answer to `prompt`; `template` is given as a file."""
        clock = clock or ScriptClock()
        file = None
        if template is not None:
            file = self.model.with_name("template.jinja")
            file.write_text(template)
        opening = OpenRequest(str(self.model), self.sources(**flags), file, template=not raw)
        request = RunRequest(opening, prompt, raw)
        factory = self.factory(Script([list(reply)], specials), clock)
        return Answered(tuple(run(request, clock.clock, Stop(), factory)))

    @property
    def last_prompt(self) -> str:
        """Text of the last prompt an engine was given."""
        return bytes(self.engines[-1].prompts[-1]).decode()

    def chat(
        self,
        replies: Sequence[Sequence[str | bytes]],
        button: Stop | None = None,
        *,
        watched: bool = False,
        n_ctx_train: int = 8192,
        **flags: object,
    ) -> Chat:
        """An open chat."""
        clock = ScriptClock()
        request = OpenRequest(str(self.chat_model), self.sources(**flags))
        store = SessionStore(Path(self.env["LLMRUN_DATA_DIR"]), lambda: datetime.now(UTC))
        session = store.unsaved(model="", system=str(flags.get("system") or ""))
        factory = self.factory(Script(replies, n_ctx_train=n_ctx_train), clock)
        chat = Chat(request, session, clock.clock, button or Stop(), factory, watched=watched)
        list(chat.open())
        self.chats.append(chat)
        return chat

    def close(self) -> None:
        """Close every chat that was opened."""
        for chat in self.chats:
            with suppress(WriteFailure):  # of sessions that a test took the file from
                chat.close()


@pytest.fixture(scope="session")
def plain_puppet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model file that is only read for its header; without a template, which would need a child process."""
    return write_puppet(tmp_path_factory.mktemp("header") / "plain.gguf", ["never said"], template=None).path


@pytest.fixture(scope="session")
def chat_puppet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with a template."""
    path = tmp_path_factory.mktemp("header") / "chat.gguf"
    return write_puppet(path, ["never said"], template=CHAT_TEMPLATE).path


@pytest.fixture
def desk(plain_puppet: Path, chat_puppet: Path, tmp_path: Path) -> Iterator[Desk]:
    """A `Desk` with folders under tmp_path."""
    names = ("CONFIG", "DATA", "CACHE")
    env = {f"LLMRUN_{name}_DIR": str(tmp_path / name.lower()) for name in names}
    with closing(Desk(plain_puppet, chat_puppet, env)) as opened:
        yield opened
