"""Rice coding of gaps, with one stream for each part of a value, so that whole columns are coded at once.

With parameter b, a gap g is coded as its low b bits and, in unary, the rest, g >> b (Rice and Plaunt, 1971):

    low planes   b planes of ⌈N/8⌉ bytes: bit p of gap i is bit i mod 8 of byte ⌊i/8⌋ of plane p
    unary        for each gap g >> b zeros, then a one; bits fill bytes from the least significant up

Classic Rice coding puts both parts of a value next to each other. It takes as many bits, but the place of a value then
depends on every value before it. Bits that pad a byte are zero, and no byte follows the last one, so that N gaps have
one coding.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from protocol.errors import MalformedError

Gaps = NDArray[np.int64]


PARAMETERS: Final = 32  # 0 to 31: gaps lie below 2^32


def rice_bytes(histogram: Gaps, parameter: int) -> int:
    """The length in bytes of the coding of gaps, where ``histogram[g]`` gaps equal g."""
    count = int(histogram.sum())
    quotients = int((histogram * (np.arange(len(histogram)) >> parameter)).sum())
    return parameter * -(-count // 8) + -(-(count + quotients) // 8)


def max_rice_bytes(count: int, parameter: int, size: int) -> int:
    """The greatest length in bytes of a coding of ``count`` gaps between ``count`` of ``size`` places."""
    return parameter * -(-count // 8) + -(-(count + (size >> parameter)) // 8)


def near_parameter(gaps: NDArray[np.integer], size: int) -> tuple[int, int]:
    """Of three parameters near log2 of the mean gap, the one that takes the fewest bits (the lowest of equals).

    ``gaps`` lie between ``size`` places. Returns the parameter and the length of the coding in bytes.
    """
    count = len(gaps)
    if not count:
        return 0, 0
    middle = (size // count).bit_length() - 1
    tried = range(max(middle - 1, 0), min(middle + 2, PARAMETERS))
    bits = {parameter: count + int((gaps >> parameter).sum()) for parameter in tried}
    best = min(tried, key=lambda parameter: parameter * count + bits[parameter])
    return best, best * -(-count // 8) + -(-bits[best] // 8)


def rice_encode(gaps: Gaps, parameter: int) -> bytes:
    """The low planes and the unary stream of ``gaps``, none negative."""
    planes = [np.packbits((gaps >> plane & 1).astype(np.uint8), bitorder="little") for plane in range(parameter)]
    ones = np.cumsum((gaps >> parameter) + 1) - 1
    unary = np.zeros(int(ones[-1]) + 1 if len(ones) else 0, dtype=np.uint8)
    unary[ones] = 1
    return b"".join(part.tobytes() for part in (*planes, np.packbits(unary, bitorder="little")))


def rice_decode(raw: memoryview, count: int, parameter: int) -> Gaps:
    """The ``count`` gaps coded in exactly these bytes. Raises ``MalformedError``. Allocates a few times their size."""
    plane_bytes = -(-count // 8)
    # Every gap takes at least one bit of the unary stream, so that the bytes at hand bound the claimed count.
    min_bytes = (parameter + 1) * plane_bytes
    if len(raw) < min_bytes:
        raise MalformedError(
            f"{len(raw)} bytes for {count} gaps of {parameter} low bits; at least {min_bytes} are needed"
        )
    gaps = np.zeros(count, dtype=np.int64)
    for plane in range(parameter):
        part = np.frombuffer(raw, np.uint8, plane_bytes, plane * plane_bytes)
        bits = np.unpackbits(part, bitorder="little")
        if bits[count:].any():
            raise MalformedError(f"bits after the last gap in plane {plane}")
        gaps |= bits[:count].astype(np.int64) << plane
    unary = np.frombuffer(raw, np.uint8, offset=parameter * plane_bytes)
    ones = np.flatnonzero(np.unpackbits(unary, bitorder="little"))
    if len(ones) != count or (count and unary[-1] == 0):
        raise MalformedError(f"a unary stream of {len(ones)} gaps, or bytes after it; expected {count}")
    return gaps | (np.diff(ones, prepend=-1) - 1) << parameter
