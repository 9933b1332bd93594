"""The language-model head on a GPU: what ``node.kernels.linear_logp`` computes, with bf16 products and float32 sums."""
