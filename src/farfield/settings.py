"""Groups of settings as typed values: documented field by field, immutable, strict about names."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator


class Strict(BaseModel):
    """A documented, immutable group of settings that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, values: Any) -> Any:
        if isinstance(values, Mapping):
            for key in values:
                if key not in cls.model_fields:
                    near = difflib.get_close_matches(str(key), cls.model_fields, n=1, cutoff=0.5)
                    hint = f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(cls.model_fields)}"
                    raise ValueError(f"unknown key {key!r}: {hint}")
        return values
