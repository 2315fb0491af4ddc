"""What earlier checks computed and a later one need not compute again: the fp64 reference and the ONNX export.

A result is found by its recipe, which names all that decides it, and believed because it is sealed with a key that only
the gate holds and because it goes through the same intake as what a worker sends. What may not be changed lightly: no
byte of an entry is looked at before its seal was verified, and what is looked at is the copy that was verified. A cache
that cannot be used is never an error of a check.
"""
