"""``starling export``: a trained policy as a folder that other programs load.

``export`` is the whole of it; ``source`` says what is exported, ``new_folder`` makes the folder whole or not at all,
``trained_weights`` and ``family_mean`` give the weights, ``trained_weights`` and ``whole_model`` write them,
``model_card`` says how the model came to be.
"""
