"""Benchmarks: other loaders in the same run, medians of several rounds, ratios, and a lower bound in plain NumPy."""
