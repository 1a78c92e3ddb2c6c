"""Every error a user can meet, as one tree. Each message names the input at fault and the fix.

    ForewordError
    ├── ConfigError          an option, or a combination of options, that cannot work
    ├── RequestError         one request is malformed (a server answers 400)
    ├── Overloaded           no room now; retry later (a server answers 503)
    ├── WeightsError         a checkpoint is missing, damaged or does not fit its config
    │   └── UnsupportedModel an architecture, tensor type or rope variant Foreword does not run
    ├── DownloadError        a model could not be fetched or its checksum differs
    ├── KernelUnavailable    a backend or device asked for by name is not here
    └── NonFiniteLogits      the model produced NaN or infinity for one request
        └── NoTokenAllowed   the form that one request asks for leaves no token to choose

Doors (CLI, library, server) turn these into one-line messages. Inside a step, broken invariants are
`assert`s: they are our bugs, not the user's.
"""

from __future__ import annotations


class ForewordError(Exception):
    """Root of all errors Foreword raises on purpose."""


class ConfigError(ForewordError):
    """An option, or a combination of options, cannot work."""


class RequestError(ForewordError):
    """One request is malformed; `parameter` names the field at fault."""

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class Overloaded(ForewordError):
    """No room for this request now."""


class WeightsError(ForewordError):
    """A checkpoint is missing, truncated, damaged or does not match its config."""


class UnsupportedModel(WeightsError):
    """The architecture, tensor type or rope variant is not one Foreword runs."""


class DownloadError(ForewordError):
    """A model could not be fetched, or what arrived has the wrong checksum."""


class KernelUnavailable(ForewordError):
    """A kernel backend or device asked for by name cannot run here."""


class NonFiniteLogits(ForewordError):
    """The target's logit row of one request holds NaN or infinity; only that request ends."""


class NoTokenAllowed(NonFiniteLogits):
    """What one request asks for (its form, with its other rules) leaves no token to choose from;
    only that request ends."""
