"""One error type per boundary. Each message is one sentence: the value, its place, the remedy."""

from __future__ import annotations


class RlsysError(Exception):
    """Base of every error that rlsys raises on purpose."""


class UserError(RlsysError, ValueError):
    """Bad input, found before anything expensive starts; the command line exits with code 2."""


class ConfigError(UserError):
    """A configuration value is unknown, mistyped or contradicts another."""


class DataError(UserError):
    """A problem set is missing, is empty or contains a malformed row."""


class ModelError(UserError):
    """A model folder or its tokenizer lacks what the run needs."""


class ResourceError(UserError):
    """The cluster has fewer resources than the configuration needs, or a service is missing."""


class RunFolderError(UserError):
    """The run directory cannot be written or read, or another run holds it."""


class EngineError(RlsysError, RuntimeError):
    """An engine died, or returned an invalid answer."""


class EngineDied(EngineError):
    """The engine, or the process around it, is gone; another engine can take its requests."""


class SyncError(RlsysError, RuntimeError):
    """Weights did not arrive in time, or the canary shows that they are wrong."""


class TrainingError(RlsysError, RuntimeError):
    """The learner cannot continue (three non-finite steps in a row, an empty step)."""


class LearnerDied(TrainingError):
    """The process of a learner rank is gone; a new learner can go on from the last checkpoint."""


class StalledError(RlsysError, RuntimeError):
    """Nothing has moved for too long; the message names who does not answer."""


class DiskError(RlsysError, OSError):
    """A file of the run cannot be written; the message names the file."""


class CheckpointError(RlsysError, RuntimeError):
    """A checkpoint cannot be written, read or does not fit the configuration."""


class EpisodeLost(RlsysError, RuntimeError):
    """An environment failed in the middle of an episode. The episode is lost; the run continues.

    There is one exception: `rlsys eval` ends with this error if every episode was lost.
    """
