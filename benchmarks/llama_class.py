"""One side of `decode_rate`: the `Llama` class of llama-cpp-python, streaming a completion.

A program of its own, so that every round starts in a fresh process as the other sides do. Prints one JSON
line. A token that ends the turn is taken like any other (the class has no such switch; the test is replaced
by one that is always false, which costs the class nothing).
"""

from __future__ import annotations

import argparse
import json
import sys
import time


def main() -> int:
    """Load, stream, print the rate."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--prompt", required=True)
    parser.add_argument("-n", type=int, required=True)
    parser.add_argument("-t", type=int, required=True)
    parser.add_argument("-c", type=int, required=True)
    parser.add_argument("-fa", choices=("on", "off"), required=True)
    arguments = parser.parse_args()

    import llama_cpp.llama_cpp as native
    from llama_cpp import Llama

    native.llama_vocab_is_eog = lambda vocab, token: False
    llama = Llama(
        arguments.model,
        n_ctx=arguments.c,
        n_threads=arguments.t,
        n_threads_batch=arguments.t,
        n_gpu_layers=-1,
        flash_attn=arguments.fa == "on",
        verbose=False,
    )
    tokens = llama.tokenize(arguments.prompt.encode(), special=True)
    answer = llama.create_completion(tokens, max_tokens=arguments.n, temperature=0.0, stream=True)
    chunks = iter(answer)
    next(chunks)
    first = last = time.perf_counter()
    for _chunk in chunks:
        last = time.perf_counter()
    predicted = llama.n_tokens - len(tokens) + 1  # the last token has not been through the model
    rate = (predicted - 1) / (last - first)
    print(json.dumps({"prompt_n": len(tokens), "predicted_n": predicted, "predicted_per_second": rate}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
