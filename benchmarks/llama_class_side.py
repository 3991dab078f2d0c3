"""One side of the prefix measurements: the `Llama` class, all messages of a script in one process.

With its defaults but for threads, window and flash attention, which the other sides use. Reads the script
from stdin, prints one JSON line an answer.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.conversations import N_CTX, Answer, converse, read_script


def main() -> int:
    """Open the model, answer, print."""
    model, threads = sys.argv[1:]
    script = read_script()
    from llama_cpp import Llama

    class Counting(Llama):
        """Tells how many tokens each evaluation takes; the first of a request is of what its cache lacks."""

        evaluated: list[int]

        def eval(self, tokens: Sequence[int]) -> None:
            self.evaluated.append(len(tokens))
            super().eval(tokens)

    llama: Any = Counting(
        model,
        n_ctx=N_CTX,
        n_threads=int(threads),
        n_threads_batch=int(threads),
        flash_attn=True,
        verbose=False,
    )

    def ask(messages: list[dict[str, str]]) -> tuple[Answer, str]:
        texts: list[str] = []
        llama.evaluated = []
        began_s, first_s = time.perf_counter(), None
        chunks = llama.create_chat_completion(
            messages, max_tokens=script.n_predict, temperature=0.0, stream=True
        )
        for chunk in chunks:
            text = chunk["choices"][0]["delta"].get("content") or ""
            if text and first_s is None:
                first_s = time.perf_counter()
            texts.append(text)
        whole = llama.n_tokens - sum(llama.evaluated[1:])
        answer = Answer((first_s or time.perf_counter()) - began_s, whole, whole - llama.evaluated[0])
        return answer, "".join(texts)

    for answer in converse(script, ask):
        print(json.dumps(asdict(answer)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
