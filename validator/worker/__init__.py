"""The boundary between the gate and the model's code: what goes in, what may come out, and how it is believed.

A worker is a fresh process that runs somebody else's code. Nothing that it says is trusted by itself: a result counts
only with exit status 0 *and* a closing record *and* the nonce *and* every sample exactly once. Nothing pickled crosses.
"""
