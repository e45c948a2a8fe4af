"""The strategies, by the names that a job gives them."""

from __future__ import annotations

from importlib import import_module

from pretune.errors import InputError
from pretune.tuner.strategies.base import Strategy as Strategy

STRATEGIES = {
    "transfer": ("transfer", "TransferStrategy"),
    "source-order": ("source_order", "SourceOrderStrategy"),
    "random": ("random", "RandomStrategy"),
}


def strategy(name: str) -> type[Strategy]:
    """The class of that name. Raises :class:`InputError` with the known names."""
    if name not in STRATEGIES:
        raise InputError(f"strategy: {name!r} is unknown; known: {', '.join(STRATEGIES)}")
    module, attribute = STRATEGIES[name]
    found: type[Strategy] = getattr(import_module(f"pretune.tuner.strategies.{module}"), attribute)
    return found
