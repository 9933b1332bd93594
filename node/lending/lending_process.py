"""The process of ``starling lend``: ``python -m node.lending.lending_process [--json]``.

Standard input: one line, the JSON of ``LendingStart``. Standard output: lines for people, or with ``--json`` the events
of ``swarm.donors.lender_service`` as JSON lines. Logs go to standard error. At the first SIGINT or SIGTERM it says
goodbye, ends its engine and ends with 0, at a second one it ends at once; otherwise it ends with a code of
``swarm.exit_codes``.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    try:
        from node.lending.running import run_lending  # takes seconds, in which Ctrl-C shows no traceback

        sys.exit(run_lending(as_json="--json" in sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
