"""``starling try``: a person asks the model, before and after training."""
