"""One side of the prefix measurements: llmrun, all messages of a script in one process.

The chat of `llmrun chat`, without its terminal. Reads the script from stdin, prints one JSON line an answer.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from llmrun.app.chat import Chat
from llmrun.app.loading import OpenRequest
from llmrun.app.settings import SettingSources
from llmrun.app.worker import Stop
from llmrun.events import Finished, Token
from llmrun.journal.sessions import SessionStore
from llmrun.metrics.clock import process_clock

from benchmarks.conversations import N_CTX, Answer, read_script


def main() -> int:
    """Open the model, answer, print."""
    model, threads = sys.argv[1:]
    script = read_script()
    settings = {
        "temperature": 0,
        "n_ctx": N_CTX,
        "max_tokens": script.n_predict,
        "n_threads": int(threads),
        "n_threads_batch": int(threads),
    }
    sessions = SessionStore(Path(os.environ["LLMRUN_DATA_DIR"]), lambda: datetime.now(UTC))
    session = sessions.unsaved(model=model, system=script.system)
    chat = Chat(
        OpenRequest(model, SettingSources(settings, None, os.environ)), session, process_clock(), Stop()
    )
    list(chat.open())
    for message in script.messages:
        if script.independent:
            session.clear()
        print(json.dumps(asdict(_ask(chat, message))), flush=True)
    chat.close()
    return 0


def _ask(chat: Chat, message: str) -> Answer:
    began_s, first_s, finished_s, stats = time.perf_counter(), None, 0.0, None
    for event in chat.say(message):
        match event:
            case Token(text=text) if text and first_s is None:
                first_s = time.perf_counter()
            case Finished():
                finished_s, stats = time.perf_counter(), event.completion.stats
    ended_s = time.perf_counter()
    assert stats is not None  # else an error would have come out of `say`
    ttft_s = (first_s or finished_s) - began_s
    return Answer(ttft_s, stats.prompt_tokens, stats.cached_tokens, ended_s - finished_s)


if __name__ == "__main__":
    sys.exit(main())
