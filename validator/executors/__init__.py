"""Executors: where jobs run. Each yields one outcome per job, in the order in which they end."""
