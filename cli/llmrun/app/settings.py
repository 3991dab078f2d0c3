"""Collects the layers of settings that this process has: flags, environment, profile, user's file, model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from llmrun.config.dirs import user_config_dir, user_config_file
from llmrun.config.layers import Effective, Layer, resolve
from llmrun.config.schema import BY_NAME, SETTINGS


def setting_name(given: str) -> str:
    """The setting that `given` names, also where it is spelt like its flag, with or without dashes."""
    flags = {spelling: s.name for s in SETTINGS if s.flag for spelling in (s.flag, s.flag.lstrip("-"))}
    return given if given in BY_NAME else flags.get(given, given)


@dataclass(frozen=True, slots=True)
class SettingSources:
    """Where settings come from, before a model is known. `flags` by setting name, None where not given;
    `chat` what was changed with /set."""

    flags: Mapping[str, object] = field(default_factory=dict)
    profile: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    chat: Mapping[str, object] = field(default_factory=dict)

    def resolve(
        self,
        *,
        model_file: Mapping[str, object] | None = None,
        catalogue_sampling: Mapping[str, object] | None = None,
    ) -> Effective:
        """Effective settings; with a model known, its own recommendations take their place among them.

        Raises:
            UsageError: a name or value is wrong; the message names the flag, variable or file and line.
        """
        return resolve(
            chat=self.chat,
            flags=self.flags,
            env=self.env,
            profile=self._profile(),
            user_file=self._user_file(),
            catalogue_sampling=catalogue_sampling,
            model_file=model_file,
        )

    def _profile(self) -> Layer | None:
        if self.profile is None:
            return None
        from llmrun.config.profiles import load_profile

        return load_profile(self.profile, user_config_dir(self.env))

    def _user_file(self) -> Layer | None:
        from llmrun.config.profiles import load_user_file

        return load_user_file(user_config_file(self.env))
