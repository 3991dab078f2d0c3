"""Log probabilities of tokens: log-softmax of the logits, and the largest of them.

Only the option for it loads numpy, which comes with the bindings.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmrun.engine.api import TokenLogprobs

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def token_logprobs(logits: NDArray[np.float32], token: int, n_top: int) -> TokenLogprobs:
    """Of `token` and of the `n_top` likeliest tokens, lower ids first among equals."""
    import numpy as np

    shifted = logits.astype(np.float64) - logits.max()
    logprobs = shifted - np.log(np.exp(shifted).sum())
    top = tuple((int(i), float(logprobs[i])) for i in _largest(logprobs, min(n_top, len(logprobs))))
    return TokenLogprobs(float(logprobs[token]), top)


def _largest(values: NDArray[np.float64], count: int) -> NDArray[np.intp]:
    """Indices of the largest values in order; to sort a whole vocabulary would take longer than a token."""
    import numpy as np

    if not count:
        return np.empty(0, np.intp)
    enough = np.flatnonzero(values >= np.partition(values, -count)[-count])
    return enough[np.argsort(-values[enough], kind="stable")][:count]
