"""Generation by vLLM, in an environment and a process of its own. Nothing else imports this package."""
