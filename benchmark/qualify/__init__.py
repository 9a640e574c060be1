"""The start-up benchmark as decisions: what to run, what the times mean, whether that will do.

Standard library and pydantic only; `worker/qualification/` carries it out.
"""
