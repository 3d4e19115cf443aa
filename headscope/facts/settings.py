"""What surrounds a run and may explain it: versions, platform, the Hub's settings; no secrets."""

from dataclasses import dataclass

from headscope.facts.report import Environment


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings that decide where checkpoints come from.

    `hf_endpoint` has any credentials masked; of the token only `token_set` is told.
    """

    platform: str
    hf_home: str
    hf_endpoint: str
    hf_hub_offline: bool
    hf_hub_cache: str
    token_set: bool


@dataclass(frozen=True, slots=True)
class Surroundings:
    """All that `env` tells."""

    environment: Environment
    settings: Settings
