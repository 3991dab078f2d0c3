"""The shell examples of docs/how-to/models.md really run, and models on this machine need no Hub client."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cache import fill_cache
from tests.support.cli import Cli
from tests.support.hub import REPO
from tests.support.pulling import Online
from tests.support.puppet import write_puppet
from tests.support.waiting import TIMEOUT_S

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "models.md"
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S)
REPORT = """
import sys
sys.argv[0] = "llmrun"
from llmrun.__main__ import main
try:
    main()
finally:
    print("client", "huggingface_hub" in sys.modules, file=sys.stderr)
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_puppet(tmp_path / "short.gguf", ["a ", "short ", "answer"]).path


def test_the_examples_run_in_the_order_of_the_page(online: Online, model: Path) -> None:
    for quant in ("Q2_K", "Q4_K_M", "Q8_0"):
        online.server.add(f"tiny-{quant}.gguf", model.read_bytes() + quant.encode())
    program = online.cli.folder / "bin" / "llmrun"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m llmrun "$@"\n')
    program.chmod(0o700)
    env = online.cli.environment()
    env["PATH"] = f"{program.parent}:{env['PATH']}"
    assert len(BLOCKS) == 5
    for block in BLOCKS:
        assert f"llmrun pull {REPO}" in block or "llmrun vram" in block or "llmrun list" in block
        done = subprocess.run(
            ["sh", "-e", "-c", block],
            cwd=online.cli.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    assert online.taken_bytes() == 0


@pytest.mark.parametrize(
    ("arguments", "client"),
    [
        ("list", False),
        ("show user/repo:Q8_0", False),
        ("vram user/repo", False),
        ("rm user/repo --yes", False),
        ("run user/repo Hi -n 1 -c 128", False),
        ("run user/absent Hi", False),
        ("pull user/repo:Q8_0 --verify", False),
        ("pull user/repo:Q8_0", True),
        ("show user/repo:Q4_K_M", True),
    ],
)
def test_the_client_is_loaded_for_what_is_not_here_alone(
    cli: Cli, tmp_path: Path, model: Path, arguments: str, client: bool
) -> None:
    cli.env.update(HF_HUB_CACHE=str(tmp_path / "hub"), HF_ENDPOINT="http://127.0.0.1:9")
    fill_cache(tmp_path / "hub", "user/repo", {"m-Q8_0.gguf": model.read_bytes()})
    done = subprocess.run(
        [sys.executable, "-c", REPORT, *arguments.split()],
        env=cli.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == f"client {client}"
