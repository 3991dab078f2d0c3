from __future__ import annotations

from pathlib import Path

import pytest

from llmrun.config.schema import RESERVED_ENV, SETTINGS

from scripts.config_docs import RESERVED_HELP, TARGET, main, render


def test_the_page_in_the_repository_is_up_to_date() -> None:
    assert main(["--check"]) == 0
    assert TARGET.read_text(encoding="utf-8") == render()


def test_a_stale_or_missing_page_is_noticed_and_renewed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "reference" / "config.md"
    assert main(["--check"], page) == 1
    assert main([], page) == 0
    assert main(["--check"], page) == 0
    page.write_text(page.read_text(encoding="utf-8").replace("`n_ctx`", "`n_context`"), encoding="utf-8")
    assert main(["--check"], page) == 1
    assert "+| `n_ctx`" in capsys.readouterr().err


def test_every_setting_and_variable_is_described() -> None:
    page = render()
    assert set(RESERVED_HELP) == RESERVED_ENV
    for setting in SETTINGS:
        assert f"| `{setting.name}` |" in page
        assert f"`{setting.env}`" in page
