"""How well models do on questions that they never learnt from, while they learn: by us and by others."""
