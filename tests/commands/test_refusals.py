"""What cannot be is refused before loading; what the engine fails to allocate is told in the same words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.archs import write_arch
from tests.support.cli import Cli, Ended
from tests.support.rpc import rpc_server

WITH_PROMPT = {"run": ("Hi", "-n", "1", "--json"), "chat": ("-n", "1"), "vram": ("--json",)}


@pytest.mark.parametrize("command", WITH_PROMPT)
def test_cache_types_that_cannot_be(cli: Cli, tmp_path: Path, command: str) -> None:
    odd = write_arch(tmp_path / "odd.gguf", "llama", head_size=48, vocabulary=True)
    latent = write_arch(tmp_path / "latent.gguf", "deepseek2", vocabulary=True)
    for path, words, reason in (
        (odd, ("--kv-type", "q8_0"), "48"),
        (odd, ("-ctk", "q8_0"), "48"),
        (odd, ("-ctv", "q8_0", "-fa", "off"), "flash attention"),
        (latent, ("-ctk", "q8_0"), "q8_0 and f16"),
    ):
        ended = cli.here(command, path, *WITH_PROMPT[command], "-c", "256", *words, stdin=b"Hi")
        said = ended.err if command == "chat" else ended.document["message"]
        assert (ended.status, reason in said) == (2, True), (words, said)


def shorter(ended: Ended) -> int:
    """The context that would fit."""
    assert (ended.status, ended.document["code"]) == (5, "does_not_fit"), ended.err
    (n_ctx,) = re.findall(r"-c (\d+)", ended.document["hint"])
    return int(n_ctx)


def test_a_failed_allocation_is_told_like_a_refusal(cli: Cli) -> None:
    """The bound on memory is known beforehand; when forced, the engine runs into it."""
    limited = ("sh", "-c", 'ulimit -v 1000000; exec "$@"', "sh")
    words = ("run", "smollm2-135m", "Hi", "-n", "1", "--json", "-c")
    refused = cli(*words, "65536", wrapper=limited)
    failed = cli(*words, "65536", "--force", wrapper=limited)
    for ended in (refused, failed):
        assert 0 < shorter(ended) < 65536
        assert "GiB" in ended.document["message"]
    assert "--force" in refused.document["hint"]
    assert "--force" not in failed.document["hint"]
    assert cli(*words, str(shorter(failed)), wrapper=limited).status == 0


@pytest.mark.parametrize("most_kib", [60_000, 150_000], ids=["weights", "cache"])
def test_a_device_that_has_less_than_it_says(cli: Cli, most_kib: int) -> None:
    with rpc_server(most_kib=most_kib) as server:
        words = ("run", "smollm2-135m", "Hi", "-n", "1", "--json", "--rpc", server, "-c", "8192")
        ended = cli(*words, "-ngl", "all")
        assert 0 < shorter(ended) < 8192
        assert re.search(r"RPC0 needs \d+\.\d MiB", ended.document["message"])
        assert "-ngl " in ended.document["hint"]
        assert cli(*words, "-ngl", "0").status == 0
