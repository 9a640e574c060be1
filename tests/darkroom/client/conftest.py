"""Fixtures of the front's tests, for clients that speak to one."""

from tests.worker.conftest import engine, front

__all__ = ["engine", "front"]
