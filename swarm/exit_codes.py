"""The exit codes of every starling process, from ``sysexits.h`` where that has one."""

from __future__ import annotations

from enum import IntEnum

from protocol.errors import (
    ConfigurationError,
    HostEndedError,
    IdentityError,
    RefusedError,
    StarlingError,
    TransportError,
)


class ExitCode(IntEnum):
    DONE = 0
    FAULT = 1
    USAGE = 2
    UNREACHABLE = 69  # no peer answers at the given addresses, or the address to listen on cannot be taken
    NOT_SAVED = 74  # the node has ended, and what it learnt last could not be saved
    TRY_AGAIN = 75  # the data directory is in use
    REFUSED = 77  # the key file cannot be used, or a private cluster does not admit this node
    BAD_CONFIGURATION = 78
    INTERRUPTED = 130


FINAL = frozenset(
    {ExitCode.USAGE, ExitCode.UNREACHABLE, ExitCode.TRY_AGAIN, ExitCode.REFUSED, ExitCode.BAD_CONFIGURATION}
)  # a child process that ends with one of these would end the same way if it were started again


def exit_code_of(error: StarlingError) -> ExitCode:
    """Returns the code with which a process ends because of ``error``."""
    if isinstance(error, ConfigurationError):
        return ExitCode.BAD_CONFIGURATION
    if isinstance(error, IdentityError | RefusedError):
        return ExitCode.REFUSED
    if isinstance(error, TransportError) and not isinstance(error, HostEndedError):  # which a new start mends
        return ExitCode.UNREACHABLE
    return ExitCode.FAULT
