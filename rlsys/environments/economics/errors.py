"""What the economics environment refuses."""

from __future__ import annotations

from rlsys.errors import RlsysError, UserError


class RequestError(UserError):
    """A client asked for something impossible; the episode is as it was before."""


class LedgerError(RlsysError):
    """Tokens got lost: what was charged is not what was generated, trained and masked."""


class EndpointError(UserError):
    """What should answer at an address does not, or not in the way it should."""
