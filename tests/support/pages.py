"""Pages of the documentation, whose commands a reader may try."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.cli import Cli
from tests.support.waiting import TIMEOUT_S


class Page:
    """A folder in which a reader tries the page's blocks."""

    def __init__(self, cli: Cli, path: Path, env: Mapping[str, str] | None = None) -> None:
        """`env`: variables that the reader has set."""
        self.cli = cli
        self.blocks = self.blocks_of(path)
        self._env = dict(env or {})
        program = cli.folder / "bin" / "llmrun"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m llmrun "$@"\n')
        program.chmod(0o700)

    @staticmethod
    def blocks_of(path: Path) -> list[str]:
        """The shell commands of a page, block by block."""
        text = path.read_text(encoding="utf-8")
        return re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)

    def run(self, script: str) -> str:
        """What a block writes on stdout; it must succeed without a word on stderr."""
        env = self.cli.environment(self._env)
        env["PATH"] = f"{self.cli.folder / 'bin'}:{env['PATH']}"
        done = subprocess.run(
            ["sh", "-ec", f"M=smollm2-135m\n{script}"],
            cwd=self.cli.folder,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    def shows(self, part: str) -> str:
        """The output of the one block with `part` in it."""
        (block,) = [block for block in self.blocks if part in block]
        return self.run(block)

    def document(self, name: str) -> Any:
        """A file of JSON that a block has written."""
        return json.loads((self.cli.folder / name).read_text())
