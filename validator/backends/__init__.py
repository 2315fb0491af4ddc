"""Backends: the catalog of rows, and the runtimes that run them.

`catalog` and `interface` are plain data and safe to import anywhere. The runtimes import torch or onnxruntime and are
imported by name, in workers only.
"""
