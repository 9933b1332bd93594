"""The address of the node's page with the owner's token, for a terminal: a click on it opens a page that may pause and
stop the node. The token stands behind #, which a browser sends to nobody, and the page takes it out of its address.
"""

from __future__ import annotations

from pathlib import Path


def page_link(page: str, token: Path) -> str:
    """Returns ``page`` with the token in the file ``token``; without it where that cannot be read.

    For the owner's own terminal alone: never for a pipe, a file or an answer of the API.
    """
    try:
        return f"{page}#token={token.read_text(encoding='ascii').strip()}"
    except (OSError, UnicodeDecodeError):
        return page
