"""Everything that pretune raises on purpose.

    PretuneError
    ├── InputError        what the user gave is wrong; the message names file, field and remedy
    │   └── IllegalKnobs  a configuration that cannot run, with the nearest ones that can
    ├── StoreError        a Parquet file in a store that cannot be read as trials, or not be written
    ├── LaunchError       a launcher could not start or reach its hosts at all
    └── TrackingError     the tracking server or its database did not take what was told

``StoreWarning`` names what was left out of what was read. The command line turns an ``InputError`` into
one line and exit code 2. A trial that fails is none of these: it is a recorded
:class:`~pretune.datasets.Trial`.
"""

from __future__ import annotations


class PretuneError(Exception):
    """Root of the tree."""


class InputError(PretuneError):
    """Wrong input. The message is one line: where, which field, what to do."""


class IllegalKnobs(InputError):
    """A configuration that no launcher could run; ``problems`` says why and what is nearest."""

    def __init__(self, problems: list) -> None:
        self.problems = problems
        super().__init__("; ".join(str(problem) for problem in problems))


class StoreError(PretuneError):
    """A file in a trial store that is truncated, foreign or of a newer schema, or cannot be written."""


class StoreWarning(UserWarning):
    """A file or row of a trial store that was not read; reading goes on without it."""


class LaunchError(PretuneError):
    """A launcher that cannot start any trial: interpreter, host or device is missing."""


class TrackingError(PretuneError):
    """The tracking server is down or refused. A session warns and goes on; ``sync`` makes it good later."""
