"""The policy: a model, its tokenizer and its device."""
