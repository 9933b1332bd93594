"""A learner beside peers whose every reward is true and whose groups are meant to spoil it."""
