"""Checkpoints on disk: writing and reading them (``checkpoints``), their files without torch (``checkpoint_files``)."""
