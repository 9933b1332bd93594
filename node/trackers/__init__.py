"""Programs that also get the run's numbers, each in a process of its own: TensorBoard, Weights & Biases, trackio."""
