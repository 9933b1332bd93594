"""Sound bytes with damage, for the tests that give a decoder what a stranger may send."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st


@st.composite
def mutated(draw: st.DrawFn, originals: Sequence[bytes], *, header_bytes: int = 0) -> bytes:
    """One of ``originals`` after one to four flips, cuts, insertions, overwritings or removals.

    With ``header_bytes``, half of them fall into so many bytes at the beginning.
    """
    raw = bytearray(draw(st.sampled_from(originals)))
    for _ in range(draw(st.integers(1, 4))):
        places = st.integers(0, len(raw))
        position = draw(places | st.integers(0, min(len(raw), header_bytes)) if header_bytes else places)
        match draw(st.sampled_from(["flip", "cut", "insert", "overwrite", "remove"])):
            case "flip" if position < len(raw):
                raw[position] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del raw[position:]
            case "insert":
                raw[position:position] = draw(st.binary(max_size=8))
            case "overwrite":
                raw[position : position + 4] = draw(st.binary(min_size=4, max_size=4))
            case "remove":
                del raw[position : position + draw(st.integers(1, 8))]
    return bytes(raw)
