"""The policy: a model, its tokenizer, its device."""
