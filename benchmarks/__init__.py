"""Measurements, kept out of the tests: `python -m benchmarks startup | throughput | cost | detection | breadth`."""
