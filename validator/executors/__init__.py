"""Executors: where jobs run. Each yields one outcome per job submitted, in the order in which they end."""
