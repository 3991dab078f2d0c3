"""Public bug reports on broken, hostile and wrong files. The comment above a test names the report."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import ClassVar

import pytest

from tests.support import bad
from tests.support.cli import Cli, Ended, program
from tests.support.gguf_writer import Tensor, Value, write_gguf
from tests.support.models import smollm2_path
from tests.support.puppet import write_puppet
from tests.support.waiting import TIMEOUT_S

COMMANDS = ("show", "vram", "run", "chat")
CONTROLS = {chr(code) for code in (*range(10), *range(11, 32), *range(127, 160))} | {"\u202e", "\u2066"}


def call(cli: Cli, command: str, path: Path, *words: str) -> Ended:
    """In this process, with a message where the command takes one."""
    return cli.here(command, path, *words, stdin=b"Hi" if command in ("run", "chat") else b"")


def put(folder: Path, name: str, content: bytes) -> Path:
    path = folder / f"{name}.gguf"
    path.write_bytes(content)
    return path


def is_one_error(ended: Ended, status: int = 4) -> bool:
    """Nothing on stdout, one line of error and one of what to do."""
    lines = ended.err.splitlines()
    return (
        (ended.status, ended.out, len(lines)) == (status, b"", 2)
        and lines[0].startswith("error: ")
        and lines[1].startswith("  ")
    )


# ggml-org/llama.cpp PR#6885, moly-ai/moly-ai#328, 1bit-MONSTER/1bit-MONSTER#1606
class TestFileCutShort:
    @pytest.fixture
    def cut(self, tmp_path: Path) -> dict[str, Path]:
        """Cut in the header, in the weights, and by the very last byte."""
        in_header, in_data = bad.cut_files(smollm2_path(), tmp_path)
        whole = write_puppet(tmp_path / "last_byte.gguf", ["ok"]).path
        os.truncate(whole, whole.stat().st_size - 1)
        return {"header": in_header, "data": in_data, "last byte": whole}

    @pytest.mark.parametrize("command", ["run", "chat"])
    @pytest.mark.parametrize("where", ["header", "data", "last byte"])
    def test_both_sizes_are_named(self, cli: Cli, cut: dict[str, Path], where: str, command: str) -> None:
        ended = call(cli, command, cut[where])
        assert is_one_error(ended)
        assert f"{cut[where].stat().st_size:,} bytes" in ended.err
        needs = {"data": 98_362_432, "last byte": cut["last byte"].stat().st_size + 1}
        assert where == "header" or f"needs {needs[where]:,}" in ended.err
        assert "download it again" in ended.err

    @pytest.mark.parametrize("command", ["show", "vram"])
    def test_what_the_header_says_is_shown_with_a_warning(
        self, cli: Cli, cut: dict[str, Path], command: str
    ) -> None:
        assert is_one_error(call(cli, command, cut["header"]))
        ended = call(cli, command, cut["data"], "--json")
        assert ended.status == 0
        assert ended.err == "warning: file is incomplete: has 4,000,000 bytes, needs 98,362,432\n"
        whole = call(cli, command, smollm2_path(), "--json").document
        for key in ("tensor_bytes", "kv_bytes_per_token", "grid"):
            assert ended.document.get(key) == whole.get(key)

    def test_no_part_of_it_is_loaded(self, cli: Cli, cut: dict[str, Path]) -> None:
        for name in ("header", "data", "last byte"):
            ended = cli.here("vram", cut[name], "--verify")
            assert is_one_error(ended)
            assert "is incomplete: it has" in ended.err


# ggml-org/llama.cpp#3358, ollama/ollama#3010, augmentedmike/miniclaw-os#495
class TestSomethingElseUnderAModelsName:
    KINDS: ClassVar = {
        "html": ("web page", "download it again"),
        "json_error": ("JSON", "download it again"),
        "lfs_pointer": ("Git LFS pointer", "git lfs pull"),
        "old_ggjt": ("old ggjt format", "no longer supported"),
        "empty": ("is empty", "download it again"),
        "magic_only": ("incomplete", "download it again"),
    }

    @pytest.mark.parametrize("command", COMMANDS)
    @pytest.mark.parametrize("name", KINDS)
    def test_it_is_named_with_the_next_step(self, cli: Cli, tmp_path: Path, name: str, command: str) -> None:
        ended = call(cli, command, put(tmp_path, name, bad.BAD_FILES[name]))
        assert is_one_error(ended)
        assert all(words in ended.err for words in self.KINDS[name])
        assert "magic" not in ended.err.replace(f"{name}.gguf", "")

    @pytest.mark.parametrize("command", COMMANDS)
    def test_a_folder(self, cli: Cli, tmp_path: Path, command: str) -> None:
        ended = call(cli, command, tmp_path)
        assert ended.status in (3, 4)
        folder = tmp_path / "x.gguf"
        folder.mkdir()
        ended = call(cli, command, folder)
        assert is_one_error(ended)
        assert "is a folder" in ended.err

    @pytest.mark.parametrize("command", COMMANDS)
    def test_a_named_pipe_is_not_waited_for(self, cli: Cli, tmp_path: Path, command: str) -> None:
        """In a process of its own, which is ended where it hangs."""
        pipe = tmp_path / "x.gguf"
        os.mkfifo(pipe)
        ended = cli(command, pipe, stdin=b"Hi")
        assert is_one_error(ended)
        assert "named pipe" in ended.err

    @pytest.mark.parametrize("command", ["show", "run"])
    @pytest.mark.parametrize("locked", ["x.gguf", "."])
    def test_without_permission(self, cli: Cli, tmp_path: Path, command: str, locked: str) -> None:
        """Root may read anything unless the power to do so is taken from it."""
        as_anyone: tuple[str, ...] = ()
        if os.geteuid() == 0:
            as_anyone = ("setpriv", "--bounding-set", "-dac_override,-dac_read_search")
            if (
                shutil.which("setpriv") is None
                or subprocess.run([*as_anyone, "true"], check=False).returncode
            ):
                pytest.skip("root reads every file here")
        folder = tmp_path / "folder"
        folder.mkdir()
        path = put(folder, "x", bad.SOUND)
        (folder / locked).chmod(0)
        ended = cli(command, path, stdin=b"Hi", wrapper=as_anyone)
        folder.chmod(0o700)
        assert is_one_error(ended, 3)
        assert "permission denied" in ended.err
        assert "chmod" in ended.err


# abetlen/llama-cpp-python PR#2187 and #69, simonw/llm#309
class TestTheRealCauseIsSaid:
    @pytest.fixture
    def without_a_tensor(self, tmp_path: Path) -> Path:
        """Its name is spelt otherwise, so that the file is whole."""
        path = write_puppet(tmp_path / "lack.gguf", ["ok"]).path
        path.write_bytes(path.read_bytes().replace(b"blk.0.ffn_up.", b"blk.0.ffn_xx."))
        return path

    @pytest.mark.parametrize("command", ["run", "chat"])
    def test_architecture(self, cli: Cli, tmp_path: Path, command: str) -> None:
        ended = call(cli, command, put(tmp_path, "z", bad.UNKNOWN_ARCH))
        assert is_one_error(ended)
        assert "zebra" in ended.err
        assert "architecture" in ended.err

    @pytest.mark.parametrize("words", [("show",), ("vram",), ("vram", "-c", "64")])
    def test_architecture_of_an_estimate(self, cli: Cli, tmp_path: Path, words: tuple[str, ...]) -> None:
        ended = cli.here(*words, put(tmp_path, "z", bad.UNKNOWN_ARCH))
        assert ended.status == 0
        assert "warning: the engine does not know the architecture zebra" in ended.err
        assert "Traceback" not in ended.err

    @pytest.mark.parametrize("command", ["run", "chat"])
    def test_tensor(self, cli: Cli, without_a_tensor: Path, command: str) -> None:
        ended = call(cli, command, without_a_tensor)
        assert is_one_error(ended)
        assert "blk.0.ffn_up.weight" in ended.err

    @pytest.mark.parametrize("command", COMMANDS)
    def test_header(self, cli: Cli, tmp_path: Path, command: str) -> None:
        ended = call(cli, command, put(tmp_path, "t", bad.BAD_FILES["tensor_type_200"]))
        assert is_one_error(ended)
        assert "token_embd.weight" in ended.err
        assert "200" in ended.err
        ended = call(cli, command, put(tmp_path, "a", bad.BAD_FILES["arch_missing"]))
        assert "names no architecture" in ended.err
        assert ended.status == (0 if command == "show" else 4)

    @pytest.mark.parametrize("command", COMMANDS)
    def test_path(self, cli: Cli, tmp_path: Path, command: str) -> None:
        ended = call(cli, command, tmp_path / "nothing here.gguf")
        assert is_one_error(ended, 3)
        assert "nothing here.gguf" in ended.err

    def test_causes_differ_in_json_too(self, cli: Cli, tmp_path: Path, without_a_tensor: Path) -> None:
        paths = [put(tmp_path, "z", bad.UNKNOWN_ARCH), without_a_tensor]
        found = [call(cli, "run", path, "--json").document for path in paths]
        assert [document["schema"] for document in found] == ["llmrun.error/1"] * 2
        assert len({document["message"] for document in found}) == 2

    def test_no_two_causes_sound_alike(self, cli: Cli, tmp_path: Path) -> None:
        """A reason may be shared by files that differ in a number only."""
        reasons = set()
        for content in bad.BAD_FILES.values():
            ended = call(cli, "run", put(tmp_path, "m", content))
            assert is_one_error(ended), ended.err
            reasons.add(re.sub(r"[\d,]+", "N", ended.err.splitlines()[0]))
        assert len(reasons) > 0.7 * len(bad.BAD_FILES)

    def test_the_engines_log_is_there_on_request(self, cli: Cli, without_a_tensor: Path) -> None:
        ended = cli("run", without_a_tensor, "Hi", "-v")
        assert (ended.status, ended.out) == (4, b"")
        assert ended.err.count("llmrun.native: ") > 10
        assert "error: " in ended.err.splitlines()[-2]


# ggml-org/llama.cpp PR#19856, PR#18674 and #15711, ggml-org/ggml PR#709
class TestClaimedSizes:
    NAMES = (
        "kv_count_2e62", "kv_count_2e40", "tensor_count_2e62", "tensor_count_2e36", "string_len_2e63",
        "string_len_2e29", "value_len_2e62", "array_len_2e60", "array_len_2e64", "string_array_2e60",
        "array_nested", "dim_zero", "dim_negative", "dim_product_2e64", "dims_9", "dims_none", "dims_2e32",
        "tensor_offset_2e62", "tensor_offset_odd", "align_2e31",
    )  # fmt: skip
    # each file by each command in one child, with the address space of a small machine
    SCRIPT = """
import io, json, resource, sys
from pathlib import Path
from llmrun.commands.cli import run_cli
resource.setrlimit(resource.RLIMIT_AS, (300 << 20, 300 << 20))
found = {}
for path in sorted(Path(sys.argv[1]).iterdir()):
    for words in (["show"], ["show", "--json"], ["vram"], ["run"]):
        out, err = io.BytesIO(), io.StringIO()
        sys.stdin = io.TextIOWrapper(io.BytesIO(b"Hi"))
        sys.stdout, sys.stderr = io.TextIOWrapper(out, "utf-8"), err
        status = run_cli([*words, str(path)])
        sys.stdout.flush()
        found[f"{path.stem} {' '.join(words)}"] = (status, out.getvalue().decode(), err.getvalue())
sys.stdout = sys.__stdout__
peak_kib = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
print(json.dumps([found, peak_kib]))
"""

    def test_none_is_believed(self, cli: Cli, tmp_path: Path) -> None:
        folder = tmp_path / "files"
        folder.mkdir()
        for name in self.NAMES:
            put(folder, name, bad.BAD_FILES[name])
        done = subprocess.run(
            [program()[0], "-c", self.SCRIPT, str(folder)],
            capture_output=True,
            env=cli.environment(),
            check=True,
            timeout=TIMEOUT_S,
        )
        found, peak_kib = json.loads(done.stdout)
        assert len(found) == 4 * len(self.NAMES)
        for what, (status, out, err) in found.items():
            if "--json" in what:
                assert json.loads(out)["exit_code"] == status == 4, what
                continue
            assert is_one_error(Ended(status, out.encode(), err)), (what, status, out, err)
        assert peak_kib < 100 << 10


# ggml-org/llama.cpp#9652 and #12080
class TestModelsOfAnotherKind:
    @pytest.mark.parametrize("name", bad.OTHER_KINDS)
    def test_no_word_is_generated(self, cli: Cli, tmp_path: Path, name: str) -> None:
        path = put(tmp_path, "m", bad.OTHER_KINDS[name])
        for command in ("run", "chat", "vram"):
            ended = call(cli, command, path)
            assert is_one_error(ended)
            assert (
                "holds no weights" if name == "vocabulary" else "not a text-generation model"
            ) in ended.err
        assert call(cli, "run", path, "--json").document["exit_code"] == 4

    @pytest.mark.parametrize("name", bad.OTHER_KINDS)
    def test_they_are_described(self, cli: Cli, tmp_path: Path, name: str) -> None:
        path = put(tmp_path, "m", bad.OTHER_KINDS[name])
        ended = call(cli, "show", path)
        assert ended.status == 0
        assert ended.err.count("\n") == 1
        refused = call(cli, "run", path).err.splitlines()[0]
        assert ended.err.strip().removeprefix("warning: ") == refused.removeprefix("error: ")
        kind = {"clip": "mmproj", "vocabulary": "llama"}.get(name, name)
        assert kind in ended.text


# ggml-org/llama.cpp#28969, promptfoo/modelaudit PR#1580
class TestEscapesInAFile:
    TEXT = "\x1b]52;c;b3duZWQ=\x07\x1b[2J\rover \x1b]8;;http://x\x1b\\link [bold]b[/] \u202egnp\u2066 \x9b31m"
    EXTRA: ClassVar[dict[str, Value]] = {
        "general.name": TEXT,
        "general.license": TEXT,
        f"evil.{TEXT}": TEXT,
        "evil.list": [TEXT] * 3,
        "huge.list": [TEXT] * 20_000,
        "huge.text": TEXT * 2_000,
    }
    WAYS = (
        ("show",),
        ("show", "--metadata"),
        ("vram", "-c", "256"),
        ("run", "-v", "-n", "1", "-c", "256", "--temp", "0"),
    )

    @pytest.fixture
    def model(self, tmp_path: Path) -> Path:
        folder = tmp_path / "\x1b[31mred"
        folder.mkdir()
        return write_puppet(folder / "[i]\x07.gguf", ["ok"], extra=self.EXTRA.items()).path

    @pytest.mark.parametrize("words", WAYS, ids=" ".join)
    def test_on_a_pipe(self, cli: Cli, model: Path, words: tuple[str, ...]) -> None:
        ended = cli.here(words[0], model, *words[1:], stdin=b"Hi" if words[0] == "run" else b"")
        assert ended.status == 0
        assert not CONTROLS & set(ended.text + ended.err)
        if words[0] == "run":
            return
        assert "[bold]b[/]" in ended.text
        assert "\u241b" in ended.text
        assert len(ended.text.splitlines()) < 60
        assert len(ended.text) < 12_000

    @pytest.mark.parametrize("words", WAYS, ids=" ".join)
    def test_on_a_terminal(self, cli: Cli, model: Path, words: tuple[str, ...]) -> None:
        prompt = ("Hi",) if words[0] == "run" else ()
        env = {"TERM": "dumb"}  # so that no sequence is the program's own
        with cli.terminal(words[0], model, *prompt, *words[1:], lines=60, env=env) as terminal:
            assert terminal.ended() == 0
            text = terminal.raw.decode().replace("\r\n", "\n")
        assert not CONTROLS & set(text)
        assert "bold]" in text

    def test_json_is_exact(self, cli: Cli, model: Path) -> None:
        document = cli.here("show", model, "--metadata", "--json").document
        assert document["model"]["name"] == document["metadata"][f"evil.{self.TEXT}"] == self.TEXT
        assert document["metadata"]["huge.list"]["length"] == 20_000
        assert cli.here("vram", model, "--json").document["model"]["name"] == self.TEXT
        assert cli.here("run", model, "x", "--temp", "0", "--json").document["model"]["name"] == self.TEXT

    def test_in_errors(self, cli: Cli, tmp_path: Path) -> None:
        named = [("general.architecture", self.TEXT)]
        paths = [
            put(tmp_path, "arch", bad.BAD_FILES["arch_key_escape"]),
            write_gguf(tmp_path / "\x1b[2Jarch.gguf", named, [Tensor("t", (32,))]),
            write_gguf(tmp_path / "twice.gguf", named, [Tensor(self.TEXT, (32,))] * 2),
            tmp_path / f"{'x'.join(CONTROLS - {chr(0)})}.gguf",
        ]
        for path in paths:
            ended = call(cli, "run", path)
            assert is_one_error(ended, 3 if path is paths[-1] else 4), ended
            assert not CONTROLS & set(ended.err)
        with cli.terminal("run", paths[2], "Hi", env={"TERM": "dumb"}) as terminal:
            assert terminal.ended() == 4
            assert not CONTROLS & set(terminal.raw.decode().replace("\r\n", "\n"))
            assert "[bold]b[/]" in terminal.text.replace("\n", "")
