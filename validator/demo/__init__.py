"""`validator demo`: the main job in a scratch folder, with no server and no GPU."""
