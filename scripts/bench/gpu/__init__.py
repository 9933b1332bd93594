"""Every CUDA and Triton path: against its reference, then against what this card can do. See ``__main__``."""
