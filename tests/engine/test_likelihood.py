"""Log probabilities against their definition, on logits made up here."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmrun.engine.likelihood import token_logprobs

LOGITS = st.lists(st.sampled_from([-40.0, -2.5, 0.0, 0.0, 1.0, 7.25, 90.0]), min_size=1, max_size=40)


@given(logits=LOGITS, n_top=st.integers(0, 50), data=st.data())
def test_they_are_a_log_softmax_and_the_best_come_first(
    logits: list[float], n_top: int, data: st.DataObject
) -> None:
    token = data.draw(st.integers(0, len(logits) - 1))
    found = token_logprobs(np.array(logits, np.float32), token, n_top)
    total = max(logits) + math.log(sum(math.exp(x - max(logits)) for x in logits))
    assert found.logprob == pytest.approx(logits[token] - total, abs=1e-9)
    best = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:n_top]
    assert [i for i, _ in found.top] == best
    assert [p for _, p in found.top] == pytest.approx([logits[i] - total for i in best], abs=1e-9)
