"""What an optimizer step minimises: batches, alignment, weights, loss."""
