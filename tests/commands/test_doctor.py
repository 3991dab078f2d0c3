"""`llmrun doctor` as a program: this machine is well, a broken engine is told and not died of."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmrun.errors import EngineFailure, UsageError

from tests.support.cli import Cli


def test_this_machine_can_run_a_model(cli: Cli) -> None:
    ended = cli("doctor", "--json")
    document = ended.document
    assert (ended.status, document["schema"], document["exit_code"]) == (0, "llmrun.doctor/1", 0)
    checks = {finding["check"]: finding for finding in document["findings"]}
    expected = {"engine", "build", "device", "amx", "generation", "cpu", "memory", "bandwidth", "disk"}
    assert expected <= set(checks)
    assert {finding["level"] for finding in document["findings"]} <= {"ok", "warn"}
    assert checks["generation"]["data"]["tokens"] > 0
    assert checks["bandwidth"]["data"]["bytes_per_s"] > 0
    assert "network" not in checks


@pytest.mark.parametrize(
    "body",
    ["raise OSError('libllama.so: cannot open')", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"],
    ids=["cannot be loaded", "crashes"],
)
def test_an_engine_that_does_not_load_is_status_7(cli: Cli, tmp_path: Path, body: str) -> None:
    package = tmp_path / "broken" / "llama_cpp"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "llama_cpp.py").write_text(body + "\n")
    ended = cli("doctor", "--json", env={"PYTHONPATH": str(package.parent)})
    assert ended.status == ended.document["exit_code"] == EngineFailure.exit_code
    failed = [finding for finding in ended.document["findings"] if finding["level"] == "fail"]
    assert [finding["check"] for finding in failed] == ["engine"]
    assert failed[0]["hint"]


def test_a_broken_settings_file_has_its_status(cli: Cli) -> None:
    cli.config_dir.mkdir(parents=True, exist_ok=True)
    (cli.config_dir / "config.yaml").write_text("n_ctx: [\n")
    ended = cli("doctor")
    assert ended.status == UsageError.exit_code
    assert "settings" in ended.text.splitlines()[-1]
    assert not ended.err


def test_the_network_is_a_finding_of_its_own(cli: Cli) -> None:
    ended = cli.here("doctor", "--network", "--json", env={"HF_HUB_OFFLINE": "1"})
    (found,) = [finding for finding in ended.document["findings"] if finding["check"] == "network"]
    assert (ended.status, found["level"]) == (0, "warn")
    assert "HF_HUB_OFFLINE" in found["message"] + found["hint"]


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_every_line_fits_the_terminal(cli: Cli, columns: int) -> None:
    with cli.terminal("doctor", columns=columns, lines=99) as terminal:
        assert terminal.ended() == 0
        shown = [line.rstrip() for line in terminal.display if line.strip()]
        assert max(map(len, terminal.text.splitlines())) <= columns
    assert shown[0].startswith("✓ engine")
    assert shown[-1] == "A model can run here."
