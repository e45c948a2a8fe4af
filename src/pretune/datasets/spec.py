"""The base of every declared thing: an immutable, strict, YAML-loadable pydantic model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from pretune.datasets.durable import whole_file
from pretune.errors import InputError


class Spec(BaseModel):
    """Frozen and strict about unknown fields, so that a typo is an error and not a default."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())

    @classmethod
    def from_mapping(cls, data: Any, where: str) -> Self:
        """Validate ``data``; raises :class:`InputError` with one line naming ``where`` and the field."""
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise InputError(one_line(error, where)) from None

    @classmethod
    def from_yaml(cls, path: str | Path) -> Self:
        """Read one YAML file. Raises :class:`InputError` naming the file and the field."""
        return cls.from_mapping(read_yaml(path), str(path))

    def to_yaml(self, path: str | Path) -> None:
        """Write what is known as one YAML file, whole or not at all. Raises :class:`OSError`."""
        known = _known(self.model_dump(mode="json"))
        with whole_file(Path(path)) as file:
            file.write(yaml.safe_dump(known, sort_keys=False, allow_unicode=True).encode())


def _known(data: dict[str, Any]) -> dict[str, Any]:
    """Without fields that are None, and without mappings in which nothing is left."""
    found = {name: _known(value) if isinstance(value, dict) else value for name, value in data.items()}
    return {name: value for name, value in found.items() if value not in (None, {})}


def read_yaml(path: str | Path) -> Any:
    """The parsed file; raises :class:`InputError` when it is missing or is not YAML."""
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); check the path") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{path}: is not valid YAML: {reason}") from None


def one_line(error: ValidationError, where: str) -> str:
    """The first problems of a pydantic error as ``where: field: reason``; some reasons name the field.

    Unknown fields come first: they are often the misspelt names of those that are missing.
    """
    parts = []
    for problem in sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")[:3]:
        field = "".join(f"{step}." for step in problem["loc"]).removesuffix(".")
        reason = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            reason = "is no field here; check the spelling"
        shown = problem["input"]
        got = f", got {shown!r}" if isinstance(shown, str | int | float | bool) else ""
        parts.append(f"{field}: {reason}{got}" if field else reason)
    more = f" (and {len(error.errors()) - 3} more)" if len(error.errors()) > 3 else ""
    return f"{where}: {'; '.join(parts)}{more}"
