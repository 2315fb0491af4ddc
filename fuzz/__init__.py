"""Fuzzing: what reads bytes of others may only say no in words of its own.

`targets` has one function from bytes to nothing for each reader. Two drivers run them: hypothesis in `tests/fuzz`, and
`python -m fuzz TARGET --seconds N`, which is guided by coverage. `corpus/` holds what both start from.
"""
