"""The sequence that a conversation lives on, with the checkpoints that were taken on it."""

from __future__ import annotations

from collections.abc import Sequence

from llmrun.app.answer.kv_use import kv_use
from llmrun.app.prefixes.memory import Kept
from llmrun.engine.api import Engine, State
from llmrun.errors import EngineFailure
from llmrun.prefix.checkpoints import Checkpoint, Way, best_way, still_valid, thinned
from llmrun.prefix.reuse import common_prefix


class LiveSequence:
    """One sequence of one engine. What it holds is what the engine says; checkpoints follow that."""

    def __init__(self, engine: Engine, seq: int) -> None:
        self._engine = engine
        self._seq = seq
        self._checkpoints: list[Checkpoint[State]] = []
        self._held: list[int] = []  # when the checkpoints were last looked at
        self._ahead: list[int] = []  # what it held when tokens were last read ahead
        self._settled = 0  # how many it held before

    def held(self) -> list[int]:
        """Its tokens now; checkpoints of what it no longer holds are dropped."""
        held = list(self._engine.held(self._seq))
        self._checkpoints = still_valid(self._checkpoints, self._held, held)
        self._held = held
        return held

    def way(self, prompt: Sequence[int]) -> Way[State]:
        """The way to the longest valid prefix of a prompt."""
        return self._way(self.held(), self._engine.pos_min(self._seq), self._checkpoints, prompt)

    def way_of(self, kept: Kept, prompt: Sequence[int]) -> Way[State]:
        """The way there would be if a copy were put back."""
        return self._way(kept.tokens, kept.state.pos_min, kept.checkpoints, prompt)

    def _way(
        self,
        held: Sequence[int],
        pos_min: int,
        checkpoints: Sequence[Checkpoint[State]],
        prompt: Sequence[int],
    ) -> Way[State]:
        kind = self._engine.facts.memory
        return best_way(held, prompt, pos_min=pos_min, checkpoints=checkpoints, kind=kind)

    def take(self, way: Way[State]) -> int:
        """Go a way as far as the engine does not by itself; returns the tokens that are saved."""
        point = way.checkpoint
        if point is None:
            return way.tokens
        back = self._engine.restore(self._seq, point.handle, self._held[: point.position])
        return way.tokens if back else 0

    def put_back(self, kept: Kept) -> bool:
        """Make a copy the live sequence; False if the engine refuses it."""
        self._checkpoints = []
        if not self._engine.restore(self._seq, kept.state, kept.tokens):
            return False
        self._held, self._checkpoints = list(kept.tokens), list(kept.checkpoints)
        return True

    def copy(self) -> Kept:
        """All of it, copied out."""
        return Kept(tuple(self.held()), self._engine.save(self._seq), tuple(self._checkpoints))

    def size_bytes(self) -> int:
        """About what a copy takes."""
        used_bytes = kv_use(self._engine, self._seq).used_bytes
        return used_bytes + sum(checkpoint.size_bytes for checkpoint in self._checkpoints)

    def cut(self, n_tokens: int) -> None:
        """Keep the first tokens."""
        self._engine.rewind(self._seq, n_tokens)

    def read_ahead(self, tokens: Sequence[int]) -> None:
        """Evaluate tokens that a prompt to come is expected to have behind what is held."""
        self._settled = len(self.held())
        self._engine.feed([(self._seq, token) for token in tokens])
        self._ahead = self.held()

    def drop_ahead(self, prompt: Sequence[int]) -> None:
        """Take back what was read ahead, unless the prompt begins with all that is held since."""
        ahead, self._ahead = self._ahead, []
        if ahead and self.held() == ahead and common_prefix(ahead, prompt) < len(ahead):
            self.cut(self._settled)

    def checkpoint(self, position: int, budget_bytes: int) -> None:
        """Take a checkpoint, and go on as a later request will that comes back to it.

        A window that has moved on lies in its cells in another order than one that was put back, and sums in
        another order round otherwise. Put back now, it gives the same prompt the same answer ever after, with
        the cache or without. (With --swa-full that would forget what the setting is to keep.)

        `budget_bytes` is what checkpoints may take together; of 0 bytes none is remembered.
        """
        held, facts = self.held(), self._engine.facts
        lost = self._engine.pos_min(self._seq)
        state = self._engine.save(self._seq, partial=True)
        if state.pos_min > lost and not facts.swa_full and not self._engine.restore(self._seq, state, held):
            raise EngineFailure("the engine does not take back the state it has just saved")
        point = Checkpoint(position, state.pos_min, state.size_bytes, state)
        self._checkpoints = thinned([*self._checkpoints, point], budget_bytes)
