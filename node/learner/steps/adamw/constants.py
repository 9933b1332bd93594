"""AdamW's constants, torch's defaults."""

from typing import Final

BETA1: Final = 0.9
BETA2: Final = 0.999
EPSILON: Final = 1e-8
