"""Commands: parse, call one use case, render, return an exit code. `--help` imports nothing heavy."""
