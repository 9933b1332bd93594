"""The built-in models, as ``scripts/build_models.py`` made them."""
