"""Which models of a repository are on this machine, and what is said where the wanted one is not."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from llmrun.errors import ModelNotFound
from llmrun.gguf.text import printable
from llmrun.store.hf_cache import CachedFile, PartialFile, cached_files, find_repo, partial_files
from llmrun.store.variants import F, Variant, choose, choose_local, matching, titles, variants
from llmrun.units import format_bytes


def local_variants(repo: str, root: Path | None = None) -> tuple[Variant[CachedFile], ...]:
    """The models of `repo` in the cache: each at the current commit, else at the newest that has it whole.

    All parts of one are of one commit. Those with missing parts come last.
    """
    snapshots: dict[str, list[CachedFile]] = {}
    for file in cached_files(repo, root):
        snapshots.setdefault(file.commit, []).append(file)
    found = [variant for files in snapshots.values() for variant in variants(files)]
    kept: dict[str, Variant[CachedFile]] = {}
    for variant in sorted(found, key=lambda v: not v.complete):
        kept.setdefault(variant.name, variant)
    return tuple(kept.values())


def find_local(
    repo: str, tag: str = "", root: Path | None = None, *, pull: str, default: str = ""
) -> Variant[CachedFile]:
    """The model in the cache that `tag` names; without one, what is there, by the rule of `choose_local`.

    `pull` is how the command that fetches it names the model.

    Raises:
        ModelNotFound: it is not there, or only in part.
        UsageError: several are meant.
    """
    repo = find_repo(repo, root)
    found = local_variants(repo, root)
    fitting = found if not tag else matching(found, tag)
    if fitting:
        variant = choose(found, tag, repo) if tag else choose_local(found, default)
        if variant.complete:
            return variant
        raise _in_part(variant, partial_files(repo, root), pull if tag else _exact(pull, variant))
    unfinished = variants(part for part in partial_files(repo, root) if part.path)
    for broken_off in matching(unfinished, tag) if tag else unfinished[:1]:
        raise _broken_off(broken_off, pull if tag else _exact(pull, broken_off))
    wanted = f"{repo}:{tag}" if tag else repo
    here = f"; here is {titles(found)}" if found else ""
    raise ModelNotFound(f"{printable(wanted)} is not on this machine{here}", f"get it: {_command(pull)}")


def _exact(pull: str, variant: Variant[F]) -> str:
    """The name with the quantization of `variant`, so that nothing else is fetched instead."""
    return f"{pull}:{variant.quant}" if variant.quant else pull


def _in_part(variant: Variant[CachedFile], partial: Sequence[PartialFile], pull: str) -> ModelNotFound:
    missing = variant.missing
    begun = sum(part.size_bytes for part in partial if part.path in missing)
    have = format_bytes(variant.size_bytes + begun)
    return ModelNotFound(
        f"{printable(missing[0])} is missing: {len(variant.files)} of {variant.n_parts} parts are on this "
        f"machine, {have}",
        f"get the rest: {_command(pull)}",
    )


def _broken_off(variant: Variant[PartialFile], pull: str) -> ModelNotFound:
    totals = [part.total_bytes for part in variant.files]
    whole = [total for total in totals if total is not None]
    known = variant.complete and len(whole) == len(totals)
    of = f" of {format_bytes(sum(whole))}" if known else ""
    return ModelNotFound(
        f"{printable(variant.files[0].path)} is only partly on this machine: "
        f"{format_bytes(variant.size_bytes)}{of}",
        f"get the rest: {_command(pull)}",
    )


def _command(pull: str) -> str:
    return f"llmrun pull {shlex.quote(printable(pull))}"
