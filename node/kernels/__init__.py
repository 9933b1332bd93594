"""Operations that touch every weight or every logit, fast.

On weights, each has a reference (in ``protocol``), a CPU path and a Triton path. A function called ``X_fast`` computes
on tensors, to the bit, what the reference ``X`` defines; ``X_on_device`` is its path on a GPU. On logits there are the
head (``linear_logp``, ``head/``) and drawing tokens (``drawing/``), each defined by its torch path, within stated
bounds. ``dispatch`` chooses between the paths.
"""
