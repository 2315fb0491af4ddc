"""Measurements of speed and memory, kept out of the tests: `python -m benchmarks startup | throughput | detection`."""
