"""What a file is that is no GGUF file, and what to do about it.

Downloads that went wrong leave web pages, JSON errors or Git LFS pointers under a model's name; each has
its own way out, so each is named.
"""

from __future__ import annotations

from llmrun.errors import NotAModel
from llmrun.gguf.text import printable

MAGIC = b"GGUF"
_DOWNLOAD = "download it again and check the address"

# Magic numbers of llama.cpp's formats before GGUF, as their bytes lie in the file.
_OLD_FORMATS = {b"lmgg": "ggml", b"fmgg": "ggmf", b"tjgg": "ggjt", b"algg": "ggla (LoRA adapter)"}
_OTHER_FORMATS = {
    b"PK\x03\x04": "a zip archive (perhaps PyTorch weights)",
    b"\x1f\x8b": "a gzip archive",
    b"\x80\x02": "a Python pickle (perhaps PyTorch weights)",
    b"%PDF": "a PDF document",
}


def _looks_like_safetensors(prefix: bytes) -> bool:
    return len(prefix) >= 9 and prefix[8:9] == b"{" and int.from_bytes(prefix[:8], "little") < 1 << 30


def _kind(prefix: bytes) -> tuple[str, str]:
    """What the file is and what to do, from its first bytes."""
    start = prefix[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not prefix:
        return "is empty", _DOWNLOAD
    if prefix[:4] in _OLD_FORMATS:
        name = _OLD_FORMATS[prefix[:4]]
        return f"is in the old {name} format, which is no longer supported", "get the model as a GGUF file"
    if start.startswith(b"version https://git-lfs"):
        return "is a Git LFS pointer, not the model itself", "run `git lfs pull` where it was cloned"
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        return "is a web page, not a model", f"{_DOWNLOAD}; a proxy or a sign-in page may have answered"
    if start.startswith((b"{", b"[")):
        return "is JSON text, not a model", f"{_DOWNLOAD}; the server's answer in it may say what went wrong"
    for magic, name in _OTHER_FORMATS.items():
        if prefix.startswith(magic):
            return f"is {name}, not a GGUF file", "get the model as a GGUF file"
    if _looks_like_safetensors(prefix):
        return "is a safetensors file, not a GGUF file", "get the model as a GGUF file"
    return "is not a GGUF file: it does not begin with GGUF", "give the path of a .gguf model file"


def not_gguf(name: str, prefix: bytes) -> NotAModel:
    """The error for a file whose first bytes are `prefix` and not those of a GGUF file."""
    what, hint = _kind(prefix)
    return NotAModel(f"{printable(name)} {what}", hint)
