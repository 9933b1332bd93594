"""Operations that touch every weight, fast: for each a reference (in ``protocol``), a CPU path and a Triton path.

A function called ``X_fast`` computes on tensors, to the bit, what the reference ``X`` defines; ``X_on_device`` is its
path on a GPU. ``dispatch`` chooses between the paths.
"""
