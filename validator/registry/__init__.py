"""The model registry: where subjects come from and where verdicts are written.

`interface` says what a registry does, `mlflow_registry` does it with MLflow. This is the only package that imports
mlflow, and only inside functions: importing it takes two seconds, and `validator --help` must not pay for that.
"""
