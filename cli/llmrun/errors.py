"""Every failure a user can meet, each with its exit code and its next step.

An error says what is wrong, with the numbers, in `message`, and what to do next in `hint`. Rooms raise
these classes at their boundary and map foreign exceptions to them; only the entry point catches them.
Exit codes are a contract for scripts: 1 is kept for bugs (anything that is not an `LlmrunError`).
"""

from __future__ import annotations

from typing import ClassVar


class LlmrunError(Exception):
    """Base of all expected failures. `code` is the stable name in JSON, `exit_code` the process status."""

    code: ClassVar[str]
    exit_code: ClassVar[int]

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(LlmrunError):
    """The command line, a setting or the input cannot mean anything."""

    code = "usage"
    exit_code = 2


class ModelNotFound(LlmrunError):
    """No such model, or it is not on this machine."""

    code = "model_not_found"
    exit_code = 3


class NotAModel(LlmrunError):
    """The file exists but is not a usable text-generation model."""

    code = "not_a_model"
    exit_code = 4


class DoesNotFit(LlmrunError):
    """The model or its context needs more memory than there is."""

    code = "does_not_fit"
    exit_code = 5


class PromptTooLong(LlmrunError):
    """The prompt has more tokens than the context window."""

    code = "prompt_too_long"
    exit_code = 6


class EngineFailure(LlmrunError):
    """The native engine failed while it was running, or cannot be loaded."""

    code = "engine_failure"
    exit_code = 7


class NetworkFailure(LlmrunError):
    """The Hub or the network is unreachable or refuses."""

    code = "network"
    exit_code = 8


class WriteFailure(LlmrunError):
    """A file could not be written (disk full, permission, exists)."""

    code = "write"
    exit_code = 10


class TemplateUnusable(LlmrunError):
    """The chat template is invalid, unsafe, or refuses the conversation."""

    code = "template"
    exit_code = 11


class Interrupted(LlmrunError):
    """The user stopped the program with Ctrl-C."""

    code = "interrupted"
    exit_code = 130
