"""Write the table of the catalogue in docs/reference/models.md, or check that it is up to date.

    python scripts/catalogue_docs.py [--check]

The rest of the page is written by hand.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from llmrun.config.resources import catalogue_path
from llmrun.store.catalogue import Catalogue, CatalogueModel, read_catalogue

TARGET = Path(__file__).resolve().parents[1] / "docs" / "reference" / "models.md"
HEAD = "| name | billion parameters | trained context | for |\n|---|---|---|---|\n"
_TABLE = re.compile(re.escape(HEAD) + r"(?:\|.*\n)*")


def row(model: CatalogueModel) -> str:
    """One Markdown row."""
    parameters = _billions(model.parameters)
    if model.active_parameters is not None:
        parameters += f", {_billions(model.active_parameters)} a token"
    context = "" if model.context is None else f"{model.context:,}"
    return f"| `{model.name}` | {parameters} | {context} | {model.purpose.rstrip('.')} |\n"


def _billions(count: int | None) -> str:
    if count is None:
        return ""
    return f"{count / 1e9:.1f}".removesuffix(".0") if count >= 1e9 else f"{count / 1e9:.3g}"


def with_table(page: str, catalogue: Catalogue) -> str:
    """The page with the table as it should be."""
    table = HEAD + "".join(map(row, catalogue.values()))
    return _TABLE.sub(lambda _: table, page, count=1)


def main(arguments: list[str] | None = None, target: Path = TARGET) -> int:
    """Write the table, or compare it."""
    parser = argparse.ArgumentParser(
        description="Write the table of the catalogue in docs/reference/models.md."
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the table is out of date"
    )
    check = parser.parse_args(arguments).check
    old = target.read_text(encoding="utf-8")
    new = with_table(old, read_catalogue(catalogue_path()))
    if old == new:
        return 0
    if check:
        print(f"{target.name} has another table than models.yaml; run `make docs`.", file=sys.stderr)
        return 1
    target.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
