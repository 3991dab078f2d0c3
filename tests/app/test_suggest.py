"""Which model is named to a user who has none."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from llmrun.app.chat import Chat
from llmrun.app.library.suggest import best_fit, suggestion, weights_bytes
from llmrun.app.loading import OpenRequest
from llmrun.app.memory import host_memory
from llmrun.app.memory.host_memory import HostMemory
from llmrun.app.worker import Stop
from llmrun.config.resources import catalogue_path
from llmrun.engine.scripted import Script
from llmrun.events import Notice
from llmrun.journal.sessions import SessionStore
from llmrun.memory.quants import QUANT_BITS
from llmrun.store.catalogue import CatalogueModel, read_catalogue
from llmrun.units import GIB

from tests.support.cache import fill_cache
from tests.support.requests import Desk, ScriptClock


def model(name: str, billions: float, default: str = "Q8_0", active: float | None = None) -> CatalogueModel:
    return CatalogueModel(
        name,
        name.title(),
        parameters=int(billions * 1e9),
        active_parameters=None if active is None else int(active * 1e9),
        default=default,
        hub=f"u/{name}",
    )


MODELS = {
    m.name: m
    for m in (
        model("small", 1),
        model("large", 8),
        model("sparse", 30, active=3),
        model("slow", 20),
        model("odd", 5, default="I-Compact"),
        CatalogueModel("packaged", parameters=10**9),
    )
}


def test_the_weights_follow_from_parameters_and_bits() -> None:
    assert weights_bytes(model("m", 8)) == 8e9 * QUANT_BITS["Q8_0"] / 8
    assert weights_bytes(model("m", 8, default="q8_0")) == weights_bytes(model("m", 8))
    assert weights_bytes(model("m", 20, default="MXFP4")) == 20e9 * 4.25 / 8
    assert weights_bytes(MODELS["odd"]) is None
    assert weights_bytes(CatalogueModel("m", default="Q8_0")) is None


@pytest.mark.parametrize(
    ("free_gib", "name"), [(1, None), (2, None), (3, "small"), (9, "small"), (10, "large"), (50, "sparse")]
)
def test_the_largest_that_fits_and_answers_in_time_is_named(free_gib: int, name: str | None) -> None:
    best = best_fit(MODELS, free_gib * GIB)
    assert (best and best.name) == name


def test_the_edge_is_the_weights_a_tenth_more_and_one_gib() -> None:
    edge = int(8e9 * QUANT_BITS["Q8_0"] / 8 * 1.1) + GIB + 1
    for free, name in ((edge, "large"), (edge - 2, "small")):
        best = best_fit(MODELS, free)
        assert best is not None
        assert best.name == name


def test_one_line_tells_how_to_have_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    line = suggestion(MODELS, 12 * GIB)
    assert line is not None
    assert "\n" not in line
    assert "should fit" in line
    assert line.endswith("llmrun pull large")
    fill_cache(tmp_path, "u/large", {"m-Q8_0.gguf": b"8"})
    assert (suggestion(MODELS, 12 * GIB) or "").endswith("llmrun chat large")
    assert suggestion(MODELS, GIB) is None


def test_the_shipped_catalogue_has_one_for_every_usual_machine() -> None:
    catalogue = read_catalogue(catalogue_path())
    sizes = [best_fit(catalogue, gib * GIB) for gib in (2, 4, 6, 12, 24, 48)]
    parameters = [best.parameters or 0 for best in sizes if best is not None]
    assert len(parameters) == len(sizes)
    assert parameters == sorted(parameters)


def opening(desk: Desk, named: str | None, *, welcome: bool = True, **flags: object) -> list[str]:
    """What a chat says while it opens."""
    clock = ScriptClock()
    store = SessionStore(Path(desk.env["LLMRUN_DATA_DIR"]), lambda: datetime.now(UTC))
    request = OpenRequest(named, desk.sources(**flags), template=False)
    factory = desk.factory(Script([["one"]]), clock)
    chat = Chat(request, store.unsaved(model="", system=""), clock.clock, Stop(), factory)
    desk.chats.append(chat)
    return [event.text for event in chat.open(welcome=welcome) if isinstance(event, Notice)]


def test_a_chat_without_a_model_says_so_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "host_memory", lambda: HostMemory(16 * GIB, 12 * GIB))
    said = [line for line in opening(desk, None) if "should fit" in line]
    assert len(said) == 1
    assert not [line for line in opening(desk, None, welcome=False) if "should fit" in line]
    assert not [line for line in opening(desk, str(desk.model)) if "should fit" in line]
    assert not [line for line in opening(desk, None, model=str(desk.model)) if "should fit" in line]
    switched = [event for event in desk.chats[0].switch(None) if isinstance(event, Notice)]
    assert not [event for event in switched if "should fit" in event.text]
