"""Which prompts a round generates for, and how many completions each."""
