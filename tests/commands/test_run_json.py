"""The JSON contracts of `llmrun run`, as docs/reference/json.md promises them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from llmrun.errors import DoesNotFit, EngineFailure, LlmrunError

from tests.support.cli import Cli, Ended
from tests.support.puppet import Item, UserDefined, write_puppet

GREEDY = ("--temp", "0")
NUMBER = (int, float)
ROUNDED_MS = 0.005
"""What rounding to microseconds makes of a sum of a few times, however short they are."""
COMPLETION: dict[str, Any] = {
    "schema": str,
    "model": {"ref": str, "path": str, "name": str, "arch": str, "quant": str, "size_bytes": int},
    "text": str,
    "reasoning": str,
    "finish_reason": str,
    "usage": {
        "prompt_tokens": int,
        "completion_tokens": int,
        "total_tokens": int,
        "prompt_tokens_details": {"cached_tokens": int},
    },
    "timings": {
        "load_ms": NUMBER,
        "ttft_ms": NUMBER,
        "ttft_answer_ms": NUMBER,
        "queue_ms": NUMBER,
        "tokenize_ms": NUMBER,
        "cache_n": int,
        "prompt_n": int,
        "prompt_ms": NUMBER,
        "prompt_per_second": NUMBER,
        "predicted_n": int,
        "predicted_ms": NUMBER,
        "predicted_per_second": NUMBER,
        "itl_ms": {"mean": NUMBER, "p50": NUMBER, "p90": NUMBER, "p99": NUMBER, "max": NUMBER},
        "total_ms": NUMBER,
        "draft_n": int,
        "draft_n_accepted": int,
    },
    "prefix_cache": {"memory_tokens": int, "checkpoint_tokens": int, "disk_tokens": int, "miss_reason": str},
    "kv": {
        "tokens": int,
        "capacity_tokens": int,
        "used_bytes": int,
        "allocated_bytes": int,
        "type_k": str,
        "type_v": str,
    },
    "dropped_messages": int,
    "settings": dict,
}


def check_shape(value: Any, shape: Any, place: str = "document") -> None:
    """Every key of the contract is there with its type; more keys may be."""
    if isinstance(shape, dict):
        assert isinstance(value, dict), place
        for key, inner in shape.items():
            assert key in value, f"{place}.{key}"
            check_shape(value[key], inner, f"{place}.{key}")
    else:
        assert isinstance(value, shape), f"{place} is {value!r}"
        assert not isinstance(value, bool), place


@pytest.fixture
def document(cli: Cli, model: Path) -> dict[str, Any]:
    ended = cli.here("run", model, "x", *GREEDY, "-c", "512", "--json")
    assert (ended.status, ended.err) == (0, "")
    return ended.document


class TestDocument:
    def test_every_key_is_there(self, document: dict[str, Any]) -> None:
        check_shape(document, COMPLETION)
        assert document["schema"] == "llmrun.completion/1"

    def test_figures_agree_with_each_other(self, document: dict[str, Any]) -> None:
        usage, timings, kv = document["usage"], document["timings"], document["kv"]
        assert timings["predicted_n"] == usage["completion_tokens"] == 4
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert timings["cache_n"] == usage["prompt_tokens_details"]["cached_tokens"] == 0
        assert timings["prompt_n"] == usage["prompt_tokens"]
        assert kv["tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] - 1
        assert kv["capacity_tokens"] == document["settings"]["n_ctx"] == 512
        assert 0 < kv["used_bytes"] < kv["allocated_bytes"]
        share = kv["allocated_bytes"] * kv["tokens"] / kv["capacity_tokens"]
        assert kv["used_bytes"] == pytest.approx(share, abs=1)
        parts = [timings[f"{name}_ms"] for name in ("queue", "tokenize", "prompt")]
        assert sum(parts) <= timings["ttft_ms"] + ROUNDED_MS
        assert timings["ttft_ms"] <= timings["total_ms"]
        assert timings["total_ms"] == pytest.approx(timings["ttft_ms"] + timings["predicted_ms"], abs=0.01)
        took_ms = (timings["predicted_n"] - 1) / timings["predicted_per_second"] * 1000
        assert timings["predicted_ms"] == pytest.approx(took_ms, abs=ROUNDED_MS)
        assert 3 * timings["itl_ms"]["mean"] == pytest.approx(timings["predicted_ms"], abs=ROUNDED_MS)

    def test_the_model_is_named(self, document: dict[str, Any], model: Path) -> None:
        about = document["model"]
        assert about["ref"] == about["path"] == str(model)
        assert (about["name"], about["arch"], about["quant"]) == ("puppet", "llama", "F32")
        assert about["size_bytes"] == model.stat().st_size

    def test_one_token_has_no_rate(self, cli: Cli, model: Path) -> None:
        timings = cli.here("run", model, "x", *GREEDY, "-n", "1", "--json").document["timings"]
        assert (timings["predicted_n"], timings["predicted_per_second"], timings["itl_ms"]) == (1, None, None)

    def test_text_that_is_no_ascii_is_written_as_it_is(self, cli: Cli, tmp_path: Path) -> None:
        path = write_puppet(tmp_path / "é.gguf", ["日本", "\u2028"]).path
        ended = cli.here("run", path, "x", *GREEDY, "--json")
        assert "日本" in ended.text
        assert ended.document["text"] == "日本\u2028"

    def test_a_file_name_that_is_no_text_is_still_json(self, cli: Cli, model: Path) -> None:
        name = model.parent / b"\xff.gguf".decode("utf-8", "surrogateescape")
        model.rename(name)
        assert cli("run", name, "x", *GREEDY, "--json").document["text"] == "a short answer"


class TestStream:
    @pytest.fixture
    def ended(self, cli: Cli, tmp_path: Path) -> Ended:
        script: list[Item] = [UserDefined("<think>"), "plan", UserDefined("</think>"), "The ", "answer"]
        path = write_puppet(tmp_path / "thinking.gguf", script).path
        return cli.here("run", path, "x", *GREEDY, "--stream", "json", "-ub", "8", stdin=b"y" * 40)

    def test_events_come_in_order_on_one_clock(self, ended: Ended) -> None:
        names = [record["event"] for record in ended.records]
        first = {name: names.index(name) for name in dict.fromkeys(names)}
        assert list(first) == ["loaded", "accepted", "prefill", "token", "finished"]
        assert names[-1] == "finished"
        times = [record["t_ms"] for record in ended.records]
        assert times == sorted(times)

    def test_prefill_counts_up(self, ended: Ended) -> None:
        steps = [(r["done"], r["total"]) for r in ended.records if r["event"] == "prefill"]
        assert len(steps) > 5
        assert steps == sorted(steps)
        assert steps[0][0] == 0
        assert steps[-1][0] == steps[-1][1]

    def test_tokens_add_up_to_the_completion(self, ended: Ended) -> None:
        tokens = [record for record in ended.records if record["event"] == "token"]
        last = ended.records[-1]
        check_shape(last, COMPLETION)
        for kind, name in (("answer", "text"), ("reasoning", "reasoning")):
            assert "".join(t["text"] for t in tokens if t["kind"] == kind) == last[name] != ""
        assert sum(t["n"] for t in tokens) == last["timings"]["predicted_n"]

    def test_an_error_is_an_event_too(self, cli: Cli, tmp_path: Path) -> None:
        ended = cli.here("run", tmp_path / "none.gguf", "x", "--stream", "json")
        (record,) = ended.records
        assert (ended.status, record["event"], record["exit_code"]) == (3, "error", 3)
        assert record["t_ms"] >= 0
        assert ended.err.startswith("error: ")

    def test_no_other_format_is_known(self, cli: Cli, model: Path) -> None:
        assert cli.here("run", model, "x", "--stream", "xml").status == 2


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


class TestErrors:
    """One or two lines on stderr whatever the mode, the document on stdout with --json, and the exit code."""

    def check(self, cli: Cli, code: str, status: int, *words: str | Path, stdin: bytes = b"x") -> None:
        plain = cli.here(*words, stdin=stdin)
        assert (plain.status, plain.out) == (status, b"")
        assert plain.err.startswith("error: ")
        assert 1 <= plain.err.count("\n") <= 2
        ended = cli.here(*words, "--json", stdin=stdin)
        document = ended.document
        assert ended.status == status
        assert ended.err == plain.err
        assert set(document) == {"schema", "code", "exit_code", "message", "hint"}
        assert (document["schema"], document["code"], document["exit_code"]) == (
            "llmrun.error/1",
            code,
            status,
        )
        assert document["message"] in plain.err

    def test_usage(self, cli: Cli, model: Path) -> None:
        self.check(cli, "usage", 2, "run", model, "--no-such-flag")
        self.check(cli, "usage", 2, "run", model, "--temp", "hot")
        self.check(cli, "usage", 2, "run", model, "--profile", "nowhere")
        self.check(cli, "usage", 2, "run", model, "-f", "/no/such/file")
        self.check(cli, "usage", 2, "run", model, "--raw", "-sys", "Be brief")
        self.check(cli, "usage", 2, "run", model, stdin=b"\xff")

    def test_model_not_found(self, cli: Cli) -> None:
        self.check(cli, "model_not_found", 3, "run", "./none.gguf")
        self.check(cli, "model_not_found", 3, "run", "no-such-name")
        self.check(cli, "model_not_found", 3, "run", "user/repo:Q4_K_M")

    def test_not_a_model(self, cli: Cli, tmp_path: Path) -> None:
        self.check(cli, "not_a_model", 4, "run", write(tmp_path / "page.gguf", b"<!DOCTYPE html><html>"))
        self.check(cli, "not_a_model", 4, "run", write(tmp_path / "empty.gguf", b""))

    def test_prompt_too_long(self, cli: Cli, model: Path) -> None:
        self.check(cli, "prompt_too_long", 6, "run", model, "-c", "256", stdin=b"x" * 600)

    @pytest.mark.parametrize("error", [DoesNotFit, EngineFailure])
    def test_what_the_engine_raises(
        self, cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch, error: type[LlmrunError]
    ) -> None:
        def refuse(*_: object) -> None:
            raise error("the engine says no", "do something else")

        monkeypatch.setattr("llmrun.app.loading.default_engine", lambda _subject: refuse)
        self.check(cli, error.code, error.exit_code, "run", model)

    def test_template(self, cli: Cli, tmp_path: Path) -> None:
        path = write_puppet(tmp_path / "broken.gguf", ["never"], template="{{").path
        self.check(cli, "template", 11, "run", path)

    def test_output_that_cannot_be_written(self, cli: Cli, model: Path) -> None:
        for flags in ((), ("--json",), ("--stream", "json")):
            with open("/dev/full", "wb") as full:
                ended = cli("run", model, "x", *GREEDY, *flags, out=full)
            assert ended.status == 10
            assert ended.err.startswith("error: ")
            assert ended.err.count("\n") <= 2

    def test_a_bug_is_one_line_and_a_traceback_on_demand(
        self, cli: Cli, model: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(*_: object, **__: object) -> None:
            raise ZeroDivisionError("by design")

        monkeypatch.setattr("llmrun.app.run.run", broken)
        self.check(cli, "internal", 1, "run", model)
        assert "Traceback" in cli.here("run", model, "x", env={"LLMRUN_DEBUG": "1"}).err
