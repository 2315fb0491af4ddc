"""Golden datasets: named, versioned, content-hashed inputs that every backend is run on.

A dataset is a folder: `manifest.json`, safetensors shards, and perhaps a `policy.toml` that is no part of it.
`format` says what the manifest holds, `writer` makes a folder, `dataset` reads one, `describe` tells what is
in it, and `sources` turns arrays, images and Python functions into samples.
"""
