"""Writes a small file so that a reader sees the old content or the new, never a mixture."""

from __future__ import annotations

import os
from pathlib import Path

from protocol.errors import StorageError


def write_atomically(path: Path, content: bytes) -> None:
    """Replaces ``path`` with ``content``, mode 0600. Raises ``StorageError``; the old content stays then."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        temporary.replace(path)
    except OSError as error:
        raise StorageError(
            f"cannot write {path}: {error.strerror or error}; free space, or check its permissions"
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
