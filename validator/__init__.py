"""A gate for MLflow models: does the model compute the same function on every backend it is served from?"""

__version__ = "0.1.0"
