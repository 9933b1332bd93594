"""AdamW's moments: in float32, or in 8 bits; and the slices that a step goes through."""
