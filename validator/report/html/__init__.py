"""The report as one HTML file: opens by a double click, offline, for years. No request leaves it.

What may not be changed lightly: every text that is not ours is cleaned and escaped, here by the environment of the
template and in `svg` by the one function that writes tags; and the page's own policy lets no other script run.
"""
