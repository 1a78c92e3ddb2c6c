"""Benchmarks that a user runs: this machine's limits first, then every figure as a share of them.

`ceiling` says what a step must read, `passes` times the model's forward, `kernels` and `decode` are
the two measurements, `perplexity` what an approximation costs in quality. Figures leave this room
as plain data; `cli/bench.py` shows them.
"""
