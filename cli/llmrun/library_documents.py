"""The JSON contracts of models on the Hub and here as pure functions: `llmrun.offers/1`, `llmrun.pull/1`."""

from __future__ import annotations

from dataclasses import asdict

from llmrun.pull_report import Offers, Pulled

OFFERS_SCHEMA = "llmrun.offers/1"
PULL_SCHEMA = "llmrun.pull/1"


def offers_document(offers: Offers) -> dict[str, object]:
    """The `llmrun.offers/1` document."""
    return {
        "schema": OFFERS_SCHEMA,
        "ref": offers.ref,
        "repo": offers.repo,
        "commit": offers.commit,
        "name": offers.title,
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


def pull_document(pulled: Pulled) -> dict[str, object]:
    """The `llmrun.pull/1` document."""
    return {
        "schema": PULL_SCHEMA,
        "ref": pulled.ref,
        "name": pulled.name,
        "repo": pulled.repo or None,
        "commit": pulled.commit or None,
        "quant": pulled.quant,
        "path": str(pulled.files[0].file),
        "size_bytes": pulled.size_bytes,
        "received_bytes": pulled.received_bytes,
        "files": [
            {**asdict(file), "file": str(file.file), "sha256": file.sha256 or None} for file in pulled.files
        ],
    }
