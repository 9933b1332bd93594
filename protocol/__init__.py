"""What peers say to each other: pure data and codecs. No I/O, no clock, no torch."""
