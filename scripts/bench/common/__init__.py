"""What several benchmarks use: how they report, the processes and the networks that they measure."""
