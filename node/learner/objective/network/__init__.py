"""How a training pass runs a causal model of transformers: its attention, its prompts, its layers in parts."""
