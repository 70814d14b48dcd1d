"""Errors of the economics environment."""

from __future__ import annotations

from rlsys.errors import RlsysError, UserError


class RequestError(UserError):
    """A client's request cannot be fulfilled. The episode is unchanged."""


class LedgerError(RlsysError):
    """Token counts do not add up: charged tokens differ from trained plus masked tokens."""


class EndpointError(UserError):
    """A server or model endpoint does not answer, or its answer has the wrong format."""
