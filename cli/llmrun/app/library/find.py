"""A model by its name, on this machine or, for commands that need no more than its header, on the Hub."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from llmrun.app.library.asking import LISTING_LIMIT_S, asked
from llmrun.config.dirs import user_cache_dir
from llmrun.errors import ModelNotFound, NetworkFailure
from llmrun.events import RemoteModel
from llmrun.memory.plan import DEFAULT_RESERVE_BYTES, DeviceInfo
from llmrun.store.resolve import ResolvedModel, resolve

if TYPE_CHECKING:
    from llmrun.config.layers import Effective
    from llmrun.reports.download import HubAwaited
    from llmrun.store.remote import Repository
    from llmrun.store.repo_files import RepoFile
    from llmrun.store.variants import Variant


@dataclass(frozen=True, slots=True)
class Found:
    """A model whose headers can be read at `model.parts`. `remote` where they are all there is of it here."""

    model: ResolvedModel
    remote: RemoteModel | None = None

    @property
    def place(self) -> str:
        """The path of the model; for one on the Hub, repository and file."""
        return self.places[0]

    @property
    def places(self) -> Sequence[str]:
        """The same for every file."""
        if self.remote is None:
            return [str(path) for path in self.model.parts]
        return [f"{self.remote.repo}/{path}" for path in self.remote.files]


Choice = Callable[["Repository"], tuple["Variant[RepoFile]", int]]
"""Chooses among a repository's models; the bytes received for that come with it."""


def find_model(ref: str, cache_dir: Path, choose: Choice) -> Generator[HubAwaited, None, Found]:
    """The model that `ref` names. What is on this machine is taken without a look at the Hub; else `choose`
    says which quantization is meant where `ref` names none. Yields while the Hub does not answer.

    Raises:
        ModelNotFound, UsageError: there is none, here or there, or no single one.
        NetworkFailure: it is not here, and the Hub cannot be asked.
        NotAModel, WriteFailure: the file is something else; its header cannot be kept.
    """
    try:
        return Found(resolve(ref))
    except ModelNotFound as missing:
        from llmrun.store.remote import ask_hub, remote_name, stand_in

        name = remote_name(ref)
        if name is None:
            raise
        try:
            repository = yield from asked(lambda: ask_hub(name), LISTING_LIMIT_S)
        except NetworkFailure as failure:
            raise NetworkFailure(f"{missing.message}, and {failure.message}", failure.hint) from failure
    if name.tag:
        variant, received = repository.chosen(name.tag), 0
    else:
        variant, received = yield from asked(lambda: choose(repository))
    read = yield from asked(lambda: stand_in(repository, variant, cache_dir))
    received += read.received_bytes
    remote = RemoteModel(read.model.repo, read.model.commit, read.pull_name, read.paths, received)
    return Found(read.model, remote)


@dataclass(frozen=True, slots=True)
class Best:
    """Chooses the quantization of a repository that suits a machine best, as `pull` marks it; the smallest
    where none fits. By default this machine with the settings in force.
    """

    settings: Effective | None = None
    devices: Callable[[], Sequence[DeviceInfo]] | None = None
    reserve_bytes: int = DEFAULT_RESERVE_BYTES

    def __call__(self, repository: Repository) -> tuple[Variant[RepoFile], int]:
        from llmrun.app.library.offers import offered
        from llmrun.app.memory.devices import DeviceProbe
        from llmrun.app.settings import SettingSources

        devices = self.devices() if self.devices else DeviceProbe().result()[0]
        settings = self.settings or SettingSources({}, None, os.environ).resolve()
        cache_dir = user_cache_dir(os.environ)
        offers, variants = offered(repository, settings, devices, self.reserve_bytes, cache_dir)
        return variants[offers.marked or 0], offers.received_bytes
