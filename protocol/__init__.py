"""Everything that peers send each other: pure data and codecs. No I/O, no clock, no torch."""
