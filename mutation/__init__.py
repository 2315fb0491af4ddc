"""Mutation testing: change one thing in the code that judges, and see whether a test notices. See docs/mutation.md."""
