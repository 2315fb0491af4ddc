"""The use case behind `validator rollback`."""
