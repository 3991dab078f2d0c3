"""Builds sampler chains in the order and with the defaults of llama.cpp's own tools (common/sampling.cpp)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from llmrun.engine.api import SamplingParams
from llmrun.engine.bindings import library
from llmrun.engine.vocab import Vocab
from llmrun.errors import UsageError

_NEVER = float("-inf")


class Sampler:
    """Owns one chain for one request. Greedy when `temperature` is 0; equal seeds give equal draws."""

    def __init__(self, params: SamplingParams, vocab: Vocab, prompt: Sequence[int]) -> None:
        """Build the chain; `prompt` is what the penalties see first.

        Raises:
            UsageError: a bias names a token that the vocabulary lacks.
        """
        lib = library()
        self._lib = lib
        biases = _biases(params, vocab)
        self._chain: Any = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
        if biases:
            self._add_biases(biases, vocab.n_tokens)
        self._add_penalties(params, vocab, prompt)
        if params.temperature <= 0:
            self._add(lib.llama_sampler_init_greedy())
            return
        if params.top_k > 0:
            self._add(lib.llama_sampler_init_top_k(params.top_k))
        if params.typical_p < 1:
            self._add(lib.llama_sampler_init_typical(params.typical_p, 1))
        if params.top_p < 1:
            self._add(lib.llama_sampler_init_top_p(params.top_p, 1))
        if params.min_p > 0:
            self._add(lib.llama_sampler_init_min_p(params.min_p, 1))
        self._add(lib.llama_sampler_init_temp_ext(params.temperature, 0.0, 1.0))
        seed = lib.LLAMA_DEFAULT_SEED if params.seed is None else params.seed
        self._add(lib.llama_sampler_init_dist(seed))

    def _add(self, sampler: Any) -> None:
        self._lib.llama_sampler_chain_add(self._chain, sampler)

    def _add_biases(self, biases: Mapping[int, float], n_vocab: int) -> None:
        array = (self._lib.llama_logit_bias * len(biases))()
        for entry, (token, bias) in zip(array, biases.items(), strict=True):
            entry.token, entry.bias = token, bias
        self._add(self._lib.llama_sampler_init_logit_bias(n_vocab, len(biases), array))

    def _add_penalties(self, params: SamplingParams, vocab: Vocab, prompt: Sequence[int]) -> None:
        values = (params.repeat_penalty, params.frequency_penalty, params.presence_penalty)
        last_n = params.repeat_last_n
        if values == (1.0, 0.0, 0.0) or last_n <= 0:
            return
        penalties = self._lib.llama_sampler_init_penalties(vocab.n_tokens, last_n, *values)
        for token in prompt[-last_n:]:  # what the prompt ends with counts as repeated too
            self._lib.llama_sampler_accept(penalties, token)
        self._add(penalties)

    def sample(self, context: Any, index: int) -> int:
        """Draw from the logits of batch position `index` (-1: the last) and remember the token."""
        return int(self._lib.llama_sampler_sample(self._chain, context, index))

    def accept(self, token: int) -> None:
        """Remember a token that was not drawn."""
        self._lib.llama_sampler_accept(self._chain, token)

    def close(self) -> None:
        """Free the chain; closing twice does nothing."""
        if self._chain:
            self._lib.llama_sampler_free(self._chain)
            self._chain = None


def _biases(params: SamplingParams, vocab: Vocab) -> dict[int, float]:
    """What is added to the logits: the user's wishes, and what must not be sampled."""
    biases = dict(params.logit_bias)
    for token in biases:
        if not 0 <= token < vocab.n_tokens:
            raise UsageError(
                f"--logit-bias names token {token}, the vocabulary has {vocab.n_tokens:,}",
                f"tokens are numbered from 0 to {vocab.n_tokens - 1}",
            )
    biases.update(dict.fromkeys(vocab.suppressed_tokens(), _NEVER))
    if params.ignore_eos:
        biases.update(dict.fromkeys(vocab.eog_tokens, _NEVER))
    return biases
