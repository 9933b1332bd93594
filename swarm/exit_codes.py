"""What the exit code of every starling process means; ``sysexits.h`` where that has a number."""

from __future__ import annotations

from enum import IntEnum

from protocol.errors import ConfigurationError, IdentityError, RefusedError, StarlingError, TransportError


class ExitCode(IntEnum):
    DONE = 0
    FAULT = 1
    USAGE = 2
    UNREACHABLE = 69  # nobody answers where somebody should, or the address to listen on cannot be had
    TRY_AGAIN = 75  # the data directory is in use
    REFUSED = 77  # the key file is not usable, or a private cluster does not let this node in
    BAD_CONFIGURATION = 78
    INTERRUPTED = 130


FINAL = frozenset(
    {ExitCode.USAGE, ExitCode.UNREACHABLE, ExitCode.TRY_AGAIN, ExitCode.REFUSED, ExitCode.BAD_CONFIGURATION}
)  # of a child process: starting it again would end the same way


def exit_code_of(error: StarlingError) -> ExitCode:
    """The code with which a process ends when ``error`` is why."""
    if isinstance(error, ConfigurationError):
        return ExitCode.BAD_CONFIGURATION
    if isinstance(error, IdentityError | RefusedError):
        return ExitCode.REFUSED
    if isinstance(error, TransportError):
        return ExitCode.UNREACHABLE
    return ExitCode.FAULT
