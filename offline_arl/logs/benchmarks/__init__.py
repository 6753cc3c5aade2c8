"""Results of benchmarks."""
