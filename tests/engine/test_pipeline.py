"""Several GPUs as a pipeline: the engine's RPC servers take part in one as cards do."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.support.engines import EXACT, open_llama, run_one
from tests.support.rpc import rpc_server
from tests.support.tiny import Arch
from tests.support.waiting import TIMEOUT_S

N_UBATCH = 16
PROMPT = [3 + i * 7 % 250 for i in range(200)]

_ON_SERVERS = """
import json, sys, threading
from llmrun.engine.api import *
from llmrun.engine.context import Context
from llmrun.engine.llama import open_engine
path, prompt, params, servers = sys.argv[1], *map(json.loads, sys.argv[2:])
waits, wait = [], Context.synchronize
Context.synchronize = lambda context: (waits.append(1), wait(context))
model = ModelParams(path, gpu_layers="all", rpc=tuple(servers))
engine = open_engine(model, ContextParams(**params), lambda _: None, threading.Event())
run = engine.run([Job(0, prompt, SamplingParams(temperature=0), 8)])
done, tokens, before = [], [], 0
for step in run:
    if isinstance(step, PrefillStep):
        done.append(step.done)
    elif isinstance(step, TokenStep):
        before = before or len(waits)
        tokens.append(step.token)
print(json.dumps([engine._context.pipelined, done, before, tokens]))
engine.close()
"""


def test_it_takes_slices_without_waiting_for_each(tiny_path: dict[Arch, Path]) -> None:
    """The copies of inputs that the library keeps for it bound how many are on the way."""
    params = {**EXACT, "n_ctx": 512, "n_ubatch": N_UBATCH}
    engine = open_llama(tiny_path["llama"], **params)
    alone = run_one(engine, PROMPT, max_tokens=8)
    engine.close()
    found = []
    for n_servers in (1, 2):
        with ExitStack() as stack:
            servers = [stack.enter_context(rpc_server()) for _ in range(n_servers)]
            command = [sys.executable, "-c", _ON_SERVERS, str(tiny_path["llama"])]
            command += map(json.dumps, (PROMPT, params, servers))
            answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
        found.append(json.loads(answer.stdout))
    slices = [*range(0, len(PROMPT), N_UBATCH), len(PROMPT)]
    waited = [len(slices) - 1, 1]
    assert found == [[n > 0, slices, waited[n], alone.tokens] for n in range(2)]
