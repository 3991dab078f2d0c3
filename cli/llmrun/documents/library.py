"""The JSON contracts of models here and on the Hub as pure functions: `llmrun.catalogue/1`, `llmrun.list/1`,
`llmrun.offers/1`, `llmrun.pull/1`, `llmrun.removed/1`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime

from llmrun.reports.library import Freed, KeptModel, KnownModel, Library
from llmrun.reports.pull import Offers, Pulled

LIST_SCHEMA = "llmrun.list/1"
OFFERS_SCHEMA = "llmrun.offers/1"
CATALOGUE_SCHEMA = "llmrun.catalogue/1"
PULL_SCHEMA = "llmrun.pull/1"
REMOVED_SCHEMA = "llmrun.removed/1"


def offers_document(offers: Offers) -> dict[str, object]:
    """The `llmrun.offers/1` document."""
    return {
        "schema": OFFERS_SCHEMA,
        "ref": offers.ref,
        "repo": offers.repo,
        "commit": offers.commit,
        "name": offers.title,
        "kind": offers.kind or "model",
        "n_params": offers.n_params,
        "n_ctx": offers.n_ctx,
        "type_k": offers.type_k,
        "type_v": offers.type_v,
        "kv_bytes": offers.kv_bytes,
        "received_bytes": offers.received_bytes,
        "marked": None if offers.marked is None else offers.quants[offers.marked].quant,
        "quants": [
            {
                "quant": one.quant,
                "size_bytes": one.size_bytes,
                "files": one.n_files,
                "here_bytes": one.here_bytes,
                "bits_per_weight": one.bits,
                "sum_bytes": one.sum_bytes,
                "fits": one.where,
            }
            for one in offers.quants
        ],
    }


def catalogue_document(models: Sequence[KnownModel]) -> dict[str, object]:
    """The `llmrun.catalogue/1` document."""
    return {"schema": CATALOGUE_SCHEMA, "models": [asdict(model) for model in models]}


def pull_document(pulled: Pulled) -> dict[str, object]:
    """The `llmrun.pull/1` document."""
    return {
        "schema": PULL_SCHEMA,
        "ref": pulled.ref,
        "name": pulled.name,
        "repo": pulled.repo or None,
        "commit": pulled.commit or None,
        "quant": pulled.quant,
        "kind": pulled.kind or "model",
        "path": str(pulled.files[0].file),
        "size_bytes": pulled.size_bytes,
        "received_bytes": pulled.received_bytes,
        "files": [
            {**asdict(file), "file": str(file.file), "sha256": file.sha256 or None} for file in pulled.files
        ],
    }


def removed_document(removed: Sequence[Freed]) -> dict[str, object]:
    """The `llmrun.removed/1` document."""
    return {
        "schema": REMOVED_SCHEMA,
        "freed_bytes": sum(one.freed_bytes for one in removed),
        "shared_bytes": sum(one.shared_bytes for one in removed),
        "models": [asdict(one) for one in removed],
    }


def list_document(library: Library) -> dict[str, object]:
    """The `llmrun.list/1` document."""
    return {
        "schema": LIST_SCHEMA,
        "hub_cache": str(library.hub_cache),
        "size_bytes": library.size_bytes,
        "models": [_kept(model) for model in library.models],
    }


def _kept(model: KeptModel) -> dict[str, object]:
    return {
        "name": model.name or None,
        "quant": model.quant,
        "size_bytes": model.size_bytes,
        "complete": model.complete,
        "total_bytes": model.size_bytes if model.complete else model.total_bytes,
        "kind": model.kind or "model",
        "arch": model.arch or None,
        "source": model.source,
        "repo": model.repo or None,
        "package": model.origin or None,
        "paths": [str(path) for path in model.paths],
        "used": datetime.fromtimestamp(model.used_s, UTC)
        .isoformat(timespec="seconds")
        .replace("+00:00", "Z"),
    }
