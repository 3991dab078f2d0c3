"""Rendering as Hugging Face renders, and every way in which a template can go wrong.

The golden strings were derived by hand from the templates and Jinja's rules for blocks and blanks.
"""

from __future__ import annotations

import os
import signal
import sys
from datetime import datetime
from pathlib import Path

import pytest

from llmrun.chat.template import TemplateLimits, TemplateRaised, TemplateRenderer, load_template_file
from llmrun.errors import TemplateUnusable, UsageError

from tests.support.waiting import TIMEOUT_S

USER = [{"role": "user", "content": "Hi"}]
QUICK = TemplateLimits(wall_s=1.0)


def render(source: str, messages: list[dict[str, object]] | None = None, **extra: object) -> str:
    with TemplateRenderer(source, special_tokens={"bos_token": "<s>", "eos_token": "</s>"}) as renderer:
        return renderer.render(messages or [dict(m) for m in USER], extra=extra)


def refusal(source: str, limits: TemplateLimits | None = None) -> TemplateUnusable:
    with TemplateRenderer(source, special_tokens={}, limits=limits) as renderer:
        with pytest.raises(TemplateUnusable) as caught:
            renderer.render(USER)
        return caught.value


class TestHelpers:
    def test_tojson_keeps_text_and_takes_the_options_of_json(self) -> None:
        messages: list[dict[str, object]] = [{"role": "user", "content": "ü <日> '"}]
        assert render("{{ messages[0]|tojson }}", messages) == '{"role": "user", "content": "ü <日> \'"}'
        assert (
            render("{{ messages[0]|tojson(ensure_ascii=False, indent=2) }}", messages)
            == '{\n  "role": "user",\n  "content": "ü <日> \'"\n}'
        )
        assert (
            render(
                "{{ messages[0]|tojson(ensure_ascii=True, separators=(',', ':'), sort_keys=True) }}", messages
            )
            == '{"content":"\\u00fc <\\u65e5> \'","role":"user"}'
        )

    def test_tools_and_documents_are_defined_and_none(self) -> None:
        source = "{{ tools is none }} {{ tools is defined }} {{ documents is none }} {{ nothing is defined }}"
        assert render(source) == "True True True False"

    def test_special_tokens_and_extra_variables(self) -> None:
        assert render(
            "{{ bos_token }}{{ eos_token }}{{ unk_token }}{{ enable_thinking }}", enable_thinking=False
        ) == ("<s></s>False")

    def test_loop_controls(self) -> None:
        jumps = "{% if i == 1 %}{% continue %}{% elif i > 3 %}{% break %}{% endif %}"
        assert render("{% for i in range(9) %}" + jumps + "{{ i }}{% endfor %}") == "023"

    def test_generation_blocks_pass_through(self) -> None:
        assert render("a{% generation %}b{{ messages[0].content }}{% endgeneration %}c") == "abHic"

    def test_blanks_around_blocks_are_trimmed(self) -> None:
        body = "    {% if true %}\n  {{ m.content }}\n    {% endif %}\n"
        assert render("{% for m in messages %}\n" + body + "{% endfor %}\nend\n") == "  Hi\nend"

    def test_dates(self) -> None:
        source = (
            "{% if not date_string is defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
        )
        before = datetime.now().strftime("%d %b %Y")
        shown = render(source + "{{ date_string }}|{{ strftime_now('%Y-%m-%d') }}")
        after = datetime.now()
        assert shown in {f"{before}|{after:%Y-%m-%d}", f"{after:%d %b %Y|%Y-%m-%d}"}
        assert render(source + "{{ date_string }}", date_string="today") == "today"

    def test_filters_that_import_on_first_use(self) -> None:
        assert render("{{ 'a b'|wordwrap(1) }}{{ lipsum(1)|length > 0 }}{{ [1]|pprint }}") == "a\nbTrue[1]"


class TestFailures:
    @pytest.mark.parametrize(
        ("source", "line"),
        [("a\n{{ x", 2), ("a\n\n{{ x|nofilter }}", 3), ("{% if x %}\n{% endfor %}", 2)],
    )
    def test_an_invalid_template_names_the_line(self, source: str, line: int) -> None:
        error = refusal(source)
        assert error.exit_code == 11
        assert f"line {line}" in error.message
        assert "--chat-template-file" in error.hint
        assert "--raw" in error.hint

    def test_check_finds_an_invalid_template_without_a_render(self) -> None:
        with TemplateRenderer("{{ x", special_tokens={}) as renderer, pytest.raises(TemplateUnusable):
            renderer.check()

    def test_a_fault_while_rendering_names_the_line(self) -> None:
        assert "line 2" in refusal("\n{{ nothing.at.all }}").message

    def test_the_message_of_raise_exception_is_quoted(self) -> None:
        error = refusal("{{ raise_exception('System role not supported') }}")
        assert isinstance(error, TemplateRaised)
        assert error.reason == "System role not supported"
        assert error.reason in error.message

    def test_every_message_is_one_line(self) -> None:
        assert "\n" not in refusal("{{ raise_exception('a\nb') }}").message

    def test_a_refusal_keeps_the_child(self) -> None:
        source = "{% if messages[0].content == 'no' %}{{ raise_exception('no') }}{% endif %}ok"
        with TemplateRenderer(source, special_tokens={}) as renderer:
            for content, expected in (("yes", "ok"), ("no", None), ("yes", "ok")):
                messages = [{"role": "user", "content": content}]
                if expected is None:
                    with pytest.raises(TemplateRaised):
                        renderer.render(messages)
                else:
                    assert renderer.render(messages) == expected


class TestLimits:
    @pytest.mark.skipif(sys.platform != "linux", reason="needs the address-space limit")
    @pytest.mark.parametrize(
        "source",
        [
            "{{ 'x' * 10**9 }}",
            "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
            "{{ [[0] * 10**8] * 2 }}",
        ],
    )
    def test_memory(self, source: str) -> None:
        assert "memory" in refusal(source, TemplateLimits(memory_bytes=128 << 20)).message

    def test_time(self) -> None:
        loop = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3
        assert "1 s" in refusal(loop, QUICK).message

    def test_time_while_compiling(self) -> None:
        assert "1 s" in refusal("{{ 7 ** (7 ** 9) }}", QUICK).message

    def test_output(self) -> None:
        loop = "{% for i in range(99999) %}{% for i in range(9999) %}xxxxxxxxxx{% endfor %}{% endfor %}"
        assert "1,000" in refusal(loop, TemplateLimits(output_chars=1000)).message

    def test_a_range_beyond_the_sandbox(self) -> None:
        refusal("{% for i in range(10**9) %}{% endfor %}")

    def test_a_long_conversation_passes(self) -> None:
        text = '日🦙\n"' * 200_000
        messages: list[dict[str, object]] = [{"role": "user", "content": text}]
        assert render("{{ messages[0].content }}", messages) == text


class TestHostile:
    @pytest.mark.parametrize(
        "reach",
        [
            "cycler.__init__.__globals__.os.popen({c})",
            "lipsum.__globals__['os'].popen({c})",
            "namespace.__init__.__globals__.os.popen({c})",
            "joiner|attr('__init__')|attr('__globals__')",
            "self._TemplateReference__context",
            "''.__class__.__mro__[1].__subclasses__()",
            "'{{0.__class__}}'.format(self)",
            "messages.append(1)",
            "raise_exception.__globals__.sys.modules.os.system({c})",
        ],
    )
    def test_no_way_out_of_the_sandbox(self, reach: str, tmp_path: Path) -> None:
        canary = tmp_path / "canary"
        error = refusal("{{ " + reach.format(c=f"'touch {canary}'") + " }}")
        assert "unsafe" in error.message
        assert not canary.exists()

    def test_no_other_files_are_read(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_text("secret")
        refusal("{% include '" + str(tmp_path / "x") + "' %}")


class TestChild:
    def test_a_new_child_replaces_a_dead_one(self) -> None:
        with TemplateRenderer("{{ messages[0].content }}", special_tokens={}) as renderer:
            renderer.check()
            process = renderer._process
            assert process is not None
            process.kill()
            process.wait()
            with pytest.raises(TemplateUnusable):
                renderer.render(USER)
            assert renderer.render(USER) == "Hi"

    @pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
    def test_ctrl_c_does_not_end_it(self) -> None:
        with TemplateRenderer("ok", special_tokens={}) as renderer:
            renderer.check()
            process = renderer._process
            assert process is not None
            process.send_signal(signal.SIGINT)
            assert renderer.render(USER) == "ok"
            assert renderer._process is process

    def test_it_ends_when_its_input_does(self) -> None:
        with TemplateRenderer("ok", special_tokens={}) as renderer:
            renderer.check()
            process = renderer._process
            assert process is not None
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(TIMEOUT_S) == 0

    def test_start_does_not_wait(self) -> None:
        with TemplateRenderer("{{ 7 ** (7 ** 9) }}", special_tokens={}, limits=QUICK) as renderer:
            renderer.start()
            assert renderer._process is not None
            assert renderer._process.poll() is None

    def test_close_ends_it_and_may_be_repeated(self) -> None:
        renderer = TemplateRenderer("ok", special_tokens={})
        renderer.check()
        process = renderer._process
        renderer.close()
        renderer.close()
        assert process is not None
        assert process.returncode is not None


class TestFile:
    def test_a_template_is_read_as_it_is(self, tmp_path: Path) -> None:
        path = tmp_path / "t.jinja"
        path.write_text("{% for m in messages %}\n{{ m.content + '\\n' }}\n{% endfor %}", encoding="utf-8")
        assert load_template_file(path) == path.read_text(encoding="utf-8")

    @pytest.mark.parametrize(
        "text",
        [
            '"{% for m in messages %}\\n{{ m[\\"content\\"] }}\\n{% endfor %}"',
            '{"chat_template": "{{ messages }}"}',
            "{% for m in messages %}\\n{{ m['content'] }}\\n{% endfor %}",
        ],
    )
    def test_json_is_named_as_such(self, text: str, tmp_path: Path) -> None:
        path = tmp_path / "t.jinja"
        path.write_text(text)
        with pytest.raises(TemplateUnusable, match="JSON"):
            load_template_file(path)

    def test_a_file_that_cannot_be_read(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError):
            load_template_file(tmp_path / "missing")
        (tmp_path / "latin").write_bytes(b"\xe4")
        with pytest.raises(UsageError):
            load_template_file(tmp_path / "latin")
