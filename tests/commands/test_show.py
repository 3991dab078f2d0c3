"""`llmrun show` as a program: its outputs, hostile and broken files, narrow terminals."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import bad
from tests.support.cli import Cli
from tests.support.gguf_writer import Tensor, Value, header_bytes, write_gguf
from tests.support.models import gemma_path, smollm2_path
from tests.support.puppet import TEMPLATE, write_puppet
from tests.support.waiting import TIMEOUT_S

SECTIONS: tuple[tuple[str, ...], ...] = ((), ("--metadata",), ("--tensors",))
NAME = "\x1b]0;owned\x07\x1b[31mred\r[bold]b[/bold]\u202egnp\x9b2J"
HOSTILE: dict[str, Value] = {
    "general.name": NAME,
    "general.license": NAME,
    "general.tags": [NAME] * 3,
    f"general.sampling.{NAME}": 0.5,
    f"tokenizer.chat_template.{NAME}": NAME,
    f"evil.{NAME}": [NAME, "x"],
    "tokenizer.chat_template": f"{{{{ bos_token }}}}{NAME}",
}
CONTROLS = [chr(code) for code in (*range(10), *range(11, 32), *range(127, 160))] + ["\u202e"]
# every file in one child, with the memory of a small machine: a claimed size must not be allocated
UNDER_LIMIT = """
import io, json, resource, sys
from pathlib import Path
from llmrun.commands.cli import run_cli
resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
found = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    out, err = io.BytesIO(), io.StringIO()
    sys.stdout, sys.stderr = io.TextIOWrapper(out, "utf-8"), err
    status = run_cli(["show", str(path)])
    sys.stdout.flush()
    found[path.stem] = (status, out.getvalue().decode(), err.getvalue())
sys.stdout = sys.__stdout__
print(json.dumps(found))
"""


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A sound model with escape sequences, bells, overrides and markup wherever text can be."""
    return write_puppet(tmp_path / "h.gguf", ["a"], extra=HOSTILE.items()).path


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, str]]:
    """Status, stdout and stderr for every bad file."""
    folder = tmp_path_factory.mktemp("bad")
    bad.write_bad_files(folder)
    command = [sys.executable, "-c", UNDER_LIMIT, str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT_S)
    found = {name: (status, out, err) for name, (status, out, err) in json.loads(ended.stdout).items()}
    assert found.keys() == bad.BAD_FILES.keys()
    return found


@pytest.mark.parametrize("name", [*bad.NOT_GGUF, *bad.BROKEN])
def test_a_broken_file_is_refused_in_a_line(answers: dict[str, tuple[int, str, str]], name: str) -> None:
    status, out, err = answers[name]
    assert (status, out) == (4, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 2
    assert not any(control in err for control in CONTROLS)


@pytest.mark.parametrize("name", bad.UNRUNNABLE)
def test_a_file_that_cannot_run_is_described(answers: dict[str, tuple[int, str, str]], name: str) -> None:
    status, out, err = answers[name]
    assert status == 0
    assert err.startswith("warning: ")
    assert err.count("\n") == 1
    assert "architecture" in out
    assert not any(control in out + err for control in CONTROLS)


def test_a_folder_and_nothing(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "folder.gguf").mkdir()
    assert cli.here("show", tmp_path / "folder.gguf").status == 4
    assert cli.here("show", tmp_path / "none.gguf").status == 3
    assert cli.here("show", "smollm2-135n").status == 3
    assert cli.here("show").status == 2


@pytest.mark.parametrize("options", SECTIONS, ids="".join)
def test_no_control_character_reaches_a_pipe(cli: Cli, hostile: Path, options: tuple[str, ...]) -> None:
    ended = cli.here("show", hostile, *options)
    assert ended.status == 0
    assert not any(control in ended.text + ended.err for control in CONTROLS)
    if options != ("--tensors",):
        assert "[bold]b[/bold]" in ended.text


@pytest.mark.parametrize("options", [*SECTIONS, ("--template",)], ids="".join)
def test_no_control_character_reaches_a_terminal(cli: Cli, hostile: Path, options: tuple[str, ...]) -> None:
    with cli.terminal("show", hostile, *options, columns=60) as terminal:
        assert terminal.ended() == 0
        raw = terminal.raw.decode()
    assert not any(control in raw.replace("\r\n", "\n") for control in CONTROLS)


def test_tensor_names_are_as_harmless(cli: Cli, tmp_path: Path) -> None:
    keys: dict[str, Value] = {"general.architecture": NAME}
    path = write_gguf(tmp_path / "m.gguf", keys.items(), [Tensor(NAME, (64, 32))])
    for options in SECTIONS:
        ended = cli.here("show", path, *options)
        assert ended.status == 0
        assert "[bold]b[/bold]" in ended.text
        assert not any(control in ended.text + ended.err for control in CONTROLS)


def test_json_is_exact(cli: Cli, hostile: Path) -> None:
    document = cli.here("show", hostile, "--json", "--metadata", "--tensors", "--template").document
    assert document["schema"] == "llmrun.show/1"
    assert document["model"]["name"] == document["licence"]["name"] == NAME
    assert document["metadata"][f"evil.{NAME}"] == {"type": "string", "length": 2, "first": [NAME, "x"]}
    assert document["template"] == document["metadata"]["tokenizer.chat_template"]
    assert document["chat_template"]["named"] == [NAME]
    assert {"name": "output_norm.weight", "dims": [288], "type": "F32", "size_bytes": 1152} in document[
        "tensors"
    ]
    assert sum(tensor["size_bytes"] for tensor in document["tensors"]) == document["tensor_bytes"]


def test_json_leaves_out_what_is_long(cli: Cli, model: Path) -> None:
    document = cli.here("show", model, "--json").document
    assert not {"metadata", "tensors", "template"} & document.keys()
    long = cli.here("show", model, "--json", "--metadata").document
    assert long["chat_template"]["status"] == document["chat_template"]["status"] == "valid"


def test_a_cut_part_is_named_without_obeying_its_folder(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "\x1b[31mred"
    folder.mkdir()
    for no in range(2):
        keys: dict[str, Value] = {"general.architecture": "x", "split.no": no, "split.count": 2}
        write_gguf(
            folder / f"m-{no + 1:05d}-of-00002.gguf", keys.items(), [Tensor(f"t{no}", (64, 32), bytes(8192))]
        )
    first = folder / "m-00001-of-00002.gguf"
    first.write_bytes(first.read_bytes()[:-1])
    ended = cli.here("show", first)
    assert ended.status == 0
    assert "m-00001-of-00002.gguf is incomplete" in ended.err
    assert "\x1b" not in ended.text + ended.err


def test_json_of_a_broken_file(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_bytes(bad.BAD_FILES["html"])
    ended = cli.here("show", path, "--json")
    assert (ended.status, ended.document["schema"], ended.document["exit_code"]) == (4, "llmrun.error/1", 4)


def test_every_field_is_documented(cli: Cli, model: Path) -> None:
    page = Path(__file__).resolve().parents[2] / "docs" / "reference" / "json.md"
    section = page.read_text().split("`llmrun.show/1`")[1].split("\n## ")[0]
    document = cli.here("show", model, "--json", "--metadata", "--tensors", "--template").document
    named = [*document, *document["file"], *document["vocabulary"], *document["quantization"]]
    missing = [name for name in named if f"`{name}`" not in section and name != "schema"]
    assert missing == []


def test_the_template_alone_and_unchanged(cli: Cli, model: Path, tmp_path: Path) -> None:
    ended = cli.here("show", model, "--template")
    assert (ended.out, ended.err) == (TEMPLATE.encode(), "")
    odd = "a\r\nb\x1b[1m ü\n\n"
    path = write_puppet(tmp_path / "odd.gguf", ["a"], template=odd).path
    assert cli.here("show", path, "--template").out == odd.encode()


def test_no_template_to_write(cli: Cli, tmp_path: Path) -> None:
    path = write_puppet(tmp_path / "p.gguf", ["a"], template=None).path
    ended = cli.here("show", path, "--template")
    assert (ended.status, ended.out) == (11, b"")
    assert "chat template  none" in cli.here("show", path).text
    assert cli.here("show", path, "--template", "--tensors").status == 2


@pytest.mark.parametrize(
    ("template", "state"),
    [("{{ m", "invalid: "), ("a\n{% if %}", "line 2"), ("{{ lipsum.__globals__ }}", "unsafe: ")],
)
def test_a_template_that_cannot_be_used_is_named(cli: Cli, tmp_path: Path, template: str, state: str) -> None:
    path = write_puppet(tmp_path / "p.gguf", ["a"], template=template).path
    ended = cli.here("show", path)
    assert ended.status == 0
    (row,) = [line for line in ended.text.splitlines() if line.startswith("chat template")]
    assert state in row


def test_a_cut_file_is_shown_with_a_warning(cli: Cli, tmp_path: Path) -> None:
    in_header, in_data = bad.cut_files(smollm2_path(), tmp_path)
    ended = cli.here("show", in_data)
    assert ended.status == 0
    assert ended.err == "warning: file is incomplete: has 4,000,000 bytes, needs 98,362,432\n"
    assert ended.text.replace(str(in_data), "") == cli.here("show", smollm2_path()).text.replace(
        str(smollm2_path()), ""
    ).replace("93.8 MiB", "3.81 MiB", 1)
    assert cli.here("show", in_header).status == 4


@pytest.mark.parametrize("options", [(), ("--metadata",)], ids="".join)
def test_a_large_vocabulary_stays_on_a_screen(cli: Cli, options: tuple[str, ...]) -> None:
    ended = cli.here("show", gemma_path(), *options)
    assert (ended.status, ended.err) == (0, "")
    assert len(ended.text.splitlines()) <= 40
    assert max(map(len, ended.text.splitlines())) <= 250
    assert "262,144" in ended.text


def test_many_long_values_stay_short(cli: Cli, tmp_path: Path) -> None:
    long = "word " * 100_000
    extra: dict[str, Value] = {f"general.sampling.{i:04}": 0.5 for i in range(1000)}
    extra |= {f"tokenizer.chat_template.{i:04}": "x" for i in range(1000)}
    extra |= {"general.name": long, "general.license": long, "general.tags": [long] * 50}
    path = write_puppet(tmp_path / "p.gguf", ["a"], extra=extra.items()).path
    text = cli.here("show", path).text
    assert len(text.splitlines()) <= 40
    assert len(text) < 6000


def test_every_layer_its_own_heads_stays_short(cli: Cli, tmp_path: Path) -> None:
    keys: dict[str, Value] = {
        "general.architecture": "x",
        "x.block_count": 500,
        "x.embedding_length": 64,
        "x.attention.head_count": list(range(1, 501)),
        "x.attention.head_count_kv": [1] * 499 + [0],
    }
    path = write_gguf(tmp_path / "m.gguf", keys.items(), [Tensor("token_embd.weight", (64, 32))])
    rows = {line[:14].strip(): line[15:] for line in cli.here("show", path).text.splitlines()}
    assert rows["KV heads"] == "1 in 499 layers, 0 in 1 layer"
    assert len(rows["heads"]) < 100


@pytest.mark.parametrize("options", SECTIONS, ids="".join)
def test_nothing_is_wider_than_a_narrow_terminal(cli: Cli, options: tuple[str, ...]) -> None:
    with cli.terminal("show", "smollm2-135m", *options, columns=40, lines=60) as terminal:
        assert terminal.ended() == 0
        lines = terminal.text.splitlines()
    keys = [line for line in lines if len(line) > 40]
    assert keys == []
    assert any("blk.29.attn_k.weight" in line for line in lines) == (options == ("--tensors",))


def test_a_long_key_stands_above_its_value(cli: Cli, tmp_path: Path) -> None:
    key = "k" * 70
    path = write_puppet(tmp_path / "p.gguf", ["a"], extra={key: "word " * 30}.items()).path
    with cli.terminal("show", path, "--metadata", columns=100) as terminal:
        assert terminal.ended() == 0
        lines = terminal.text.splitlines()
    assert lines[lines.index(key) + 1].startswith("  word word")
    assert max(map(len, lines)) <= 100


def test_a_header_without_anything_is_described(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "bare.gguf"
    path.write_bytes(header_bytes([]))
    for options in (*SECTIONS, ("--json", "--metadata", "--tensors", "--template")):
        ended = cli.here("show", path, *options)
        assert ended.status == 0
        assert ended.err.count("\n") == 1
