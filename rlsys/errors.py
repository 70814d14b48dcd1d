"""One error type per boundary. Each message is one sentence: the value, the place, the remedy."""

from __future__ import annotations


class RlsysError(Exception):
    """Base of every error that rlsys raises on purpose."""


class UserError(RlsysError, ValueError):
    """Bad input, found before anything expensive starts; the command line exits with code 2."""


class ConfigError(UserError):
    """A configuration value is unknown, mistyped or contradicts another."""


class DataError(UserError):
    """A problem set is missing, empty or holds a malformed row."""


class ModelError(UserError):
    """A model folder or its tokenizer lacks what the run needs."""


class ResourceError(UserError):
    """The cluster cannot hold what the configuration asks for."""


class RunFolderError(UserError):
    """The run directory cannot be written, or another run holds it."""


class EngineError(RlsysError, RuntimeError):
    """An engine died, or answered something no engine should."""


class SyncError(RlsysError, RuntimeError):
    """Weights did not arrive in time, or the canary says they arrived wrong."""


class TrainingError(RlsysError, RuntimeError):
    """The learner cannot go on (three non-finite steps in a row, an empty step)."""


class CheckpointError(RlsysError, RuntimeError):
    """A checkpoint cannot be written, read or does not fit the configuration."""


class EpisodeLost(RlsysError, RuntimeError):
    """An environment went away in the middle of an episode: that is lost, the run goes on.

    Only an evaluation that was asked for by itself ends, if it lost every episode.
    """
