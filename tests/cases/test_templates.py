"""Public bug reports on chat templates. The comment above a test names the report."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from llmrun.errors import TemplateUnusable

from tests.support.cli import Cli
from tests.support.models import gemma_path
from tests.support.puppet import write_puppet
from tests.support.requests import Desk

GREEDY = ("--temp", "0")
SAYS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 is even) %}"
    "{{ raise_exception('Roles must alternate') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}<|go|>"
)
ESCAPES = {
    "cycler": "{{ cycler.__init__.__globals__.os.popen('touch CANARY') }}",
    "lipsum": "{{ lipsum.__globals__['os'].popen('touch CANARY') }}",
    "namespace": "{{ namespace.__init__.__globals__.os.system('touch CANARY') }}",
    "joiner": "{{ joiner.__init__.__globals__.os.system('touch CANARY') }}",
    "self": "{{ self.__init__.__globals__.__builtins__.open('CANARY', 'w') }}",
    "string": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tmp_path / "puppet.gguf"


# nomic-ai/gpt4all#3282, sgl-project/sglang#1342
class TestNoSystemRole:
    def test_the_system_text_leads_the_first_message(self, desk: Desk) -> None:
        answered = desk.run(["ok"], "Hi", template=NO_SYSTEM, system="Be brief")
        assert desk.last_prompt == "<user>Be brief\n\nHi\n<|go|>"
        assert len(answered.notices("info")) == 1
        assert answered.completion.text == "ok"

    def test_run_and_chat_answer(self, cli: Cli, model: Path) -> None:
        write_puppet(model, ["fine"], template=NO_SYSTEM)
        for words in (("run", model, "Hi"), ("chat", model)):
            ended = cli.here(*words, "-sys", "Be brief", *GREEDY, stdin=b"Hi\n")
            assert (ended.status, ended.text, ended.err) == (0, "fine", "")


# oobabooga/textgen#6675, lmstudio-ai/lmstudio-bug-tracker#577
@pytest.mark.parametrize("pattern", ["%d %b %Y", "%Y-%m-%d"])
def test_a_template_may_ask_for_the_date(desk: Desk, pattern: str) -> None:
    before = datetime.now()
    desk.run(["ok"], template=f"{{{{ strftime_now('{pattern}') }}}} {{{{ messages[0].content }}}}")
    dates = {f"{before.strftime(pattern)} x", f"{datetime.now().strftime(pattern)} x"}
    assert desk.last_prompt in dates


# abetlen/llama-cpp-python#1096 and #1236
class TestNoTemplate:
    @pytest.mark.parametrize("command", ["run", "chat"])
    def test_the_text_is_continued_as_it_is_and_that_is_said(
        self, cli: Cli, model: Path, command: str
    ) -> None:
        write_puppet(model, ["said"], template=None)
        ended = cli.here(command, model, *GREEDY, stdin=b"abc")
        assert ended.status == 0
        assert ended.err.count("\n") == 1
        assert "no chat template" in ended.err
        assert "--chat-template-file" in ended.err

    def test_no_other_familys_format_is_used(self, desk: Desk) -> None:
        desk.run(["ok"], "Once upon", system="Be brief")
        assert desk.last_prompt == "Be brief\n\nOnce upon"

    def test_a_template_file_takes_its_place(self, cli: Cli, model: Path, tmp_path: Path) -> None:
        write_puppet(model, ["said"], template=None)
        template = tmp_path / "own.jinja"
        template.write_text("{{ messages[0].content }}<|go|>")
        ended = cli.here("run", model, "x", *GREEDY, "--chat-template-file", template)
        assert (ended.text, ended.err) == ("said", "")

    def test_a_base_model_completes(self, cli: Cli) -> None:
        ended = cli.here("run", gemma_path(), "1, 2, 3, 4,", *GREEDY, "-n", "6", "-c", "256", "--json")
        assert "5, 6" in ended.document["text"]
        assert "INST" not in ended.document["text"]
        assert ended.err.count("\n") == 1


# ggml-org/llama.cpp#11400 and #11866
class TestBrokenTemplate:
    @pytest.mark.parametrize(
        ("template", "reason"),
        [
            ("line one\n{{ messages[0].content", "line 2"),
            ("{{ messages | no_such_filter }}", "no_such_filter"),
            ("{% for m in messages %}\n{{ m.content }}", "line 2"),
            ("{% for m in messages %}\\n{{ m.content }}\\n{% endfor %}\\n{% if", "JSON"),
        ],
    )
    def test_ends_in_one_reason_and_the_way_out(
        self, cli: Cli, model: Path, template: str, reason: str
    ) -> None:
        write_puppet(model, ["never"], template=template)
        for words, stdin in ((("run", model, "x"), b""), (("chat", model), b"x")):
            ended = cli.here(*words, stdin=stdin)
            assert (ended.status, ended.out) == (11, b"")
            assert ended.err.count("\n") <= 2
            assert reason in ended.err
            assert "--chat-template-file" in ended.err
        assert cli.here("run", model, "<|go|>", "--raw", *GREEDY).text == "never"

    def test_a_file_saved_json_escaped_is_recognised(self, cli: Cli, model: Path, tmp_path: Path) -> None:
        write_puppet(model, ["never"])
        template = tmp_path / "escaped.jinja"
        template.write_text('"{% for m in messages %}\\n{{ m.content }}\\n{% endfor %}"')
        ended = cli.here("run", model, "x", "--chat-template-file", template, "--json")
        assert (ended.status, ended.document["code"]) == (11, "template")
        assert "JSON" in ended.document["message"]

    def test_a_file_that_is_not_there_is_a_usage_error(self, cli: Cli, model: Path) -> None:
        write_puppet(model, ["never"])
        assert cli.here("run", model, "x", "--chat-template-file", "/no/such/file").status == 2


# abetlen/llama-cpp-python PR#1462 (CVE-2024-34359), sgl-project/sglang PR#23660
@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES)
def test_a_template_cannot_leave_its_sandbox(cli: Cli, model: Path, escape: str) -> None:
    canary = cli.folder / "canary"
    write_puppet(model, ["never"], template=escape.replace("CANARY", str(canary)))
    for words, stdin in ((("run", model, "x"), b""), (("chat", model), b"x")):
        ended = cli.here(*words, stdin=stdin)
        assert (ended.status, ended.out) == (11, b"")
        assert "unsafe" in ended.err
    assert not canary.exists()
    assert cli.here("run", model, "<|go|>", "--raw", *GREEDY).text == "never"


# google/minja#82, abetlen/llama-cpp-python PR#1486; the strings are what transformers' renderer gives
@pytest.mark.parametrize(
    ("template", "prompt"),
    [
        ("{{ messages | tojson(ensure_ascii=False, indent=2) }}",
         '[\n  {\n    "role": "user",\n    "content": "ü日"\n  }\n]'),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "ü日"}'),
        ("{{ tools is none }} {{ tools is defined }}", "True True"),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% break %}{% endif %}{{ m }}{% endfor %}!", "1!"),
        ("{% for m in [1, 2, 3] %}{% if m == 2 %}{% continue %}{% endif %}{{ m }}{% endfor %}!", "13!"),
        ("a{% generation %}{{ messages[0].content }}{% endgeneration %}b", "aü日b"),
        ("{% if true %}\n    {% set x = 1 %}\nline\n{% endif %}\nend", "line\nend"),
    ],
)  # fmt: skip
def test_templates_written_for_transformers(desk: Desk, template: str, prompt: str) -> None:
    desk.run(["ok"], "ü日", template=template)
    assert desk.last_prompt == prompt


def test_a_template_that_refuses_says_so_in_its_own_words(desk: Desk) -> None:
    with pytest.raises(TemplateUnusable, match="only poems"):
        desk.run(["ok"], template="{{ raise_exception('only poems') }}")
