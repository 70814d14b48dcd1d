"""The benchmark `rlsys eval economics`: agents play the same episodes and are compared.

Reading order: agents (with `allocators`, `solvers` and `language_models`), sessions, play, oracle
(with `knapsack`), results, summary, plots, and `run`, which connects them.
"""
