"""How long a test waits before it takes silence for a hang.

A guard ends a test that would never end. It is no limit on speed: where something reports its progress (a node's
events, a growing file), each report starts the guard anew, so that a test passes on a machine that is busy with sixteen
other processes. The longest silence there is the import of torch, under a minute.
"""

from typing import Final

HANG_SECONDS: Final = 120.0
