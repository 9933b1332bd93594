"""From groups to an optimizer step: passes, gradients, moments, and what is taken back when memory runs out."""
