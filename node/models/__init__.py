"""The built-in models, made by ``scripts/build_models.py``."""
