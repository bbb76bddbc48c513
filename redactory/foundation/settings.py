"""The base of every room's settings: frozen, unknown keys refused, values never quoted in errors."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """One description that serves the configuration file, the documentation and the hash."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True, allow_inf_nan=False
    )
