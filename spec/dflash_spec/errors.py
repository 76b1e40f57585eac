"""Every error that this project raises on purpose.

Each message says what was found, what was expected, and where.
"""


class DFlashError(Exception):
    """Base of all named errors."""


class SpecDataError(DFlashError):
    """The spec's own data (clauses, ops, profiles, geometries) is malformed."""


class ConfigError(DFlashError):
    """A model config breaks a rule: `key` names the member, `clause` the rule, `detail` is the message without it."""

    def __init__(self, message: str, *, key: str = "", clause: str = "") -> None:
        super().__init__(f"{message} [{clause}]" if clause else message)
        self.detail = message
        self.key = key
        self.clause = clause


class TensorFileError(DFlashError):
    """A tensor file is damaged, or not what its reader expects."""


class CheckpointError(TensorFileError):
    """A checkpoint folder does not hold what its config asks for. Says tensor, found, expected and file."""


class TraceError(TensorFileError):
    """A trace is damaged, out of order, or not of the request or the pair that its reader expects."""


class TensorError(DFlashError):
    """A tensor has another dtype, shape or value than its declaration allows."""


class UnsupportedError(DFlashError):
    """Well-formed, but not executable here."""


class UnsupportedConfigError(ConfigError, UnsupportedError):
    """A well-formed config that asks for something that is readable but not executable here."""


class FolderError(ConfigError, CheckpointError):
    """A folder's tensors are not those that its config asks for: `key` names the tensor."""


class OutputError(DFlashError):
    """A stream, a file or a folder does not take what is to be written."""


class RequestError(DFlashError):
    """A generation request has an argument out of its domain."""


class CommitError(DFlashError):
    """A batch of rounds cannot be started or committed as asked; nothing of it is."""


class StateError(DFlashError):
    """A state cannot be kept, copied, restored or continued as asked; it stays as it was."""


class ImplementationError(DFlashError):
    """An implementation under test cannot be used: it broke the protocol, crashed, or gave no answer."""
