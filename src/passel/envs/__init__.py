"""Environments: one boundary contract, several back-ends behind it."""

from passel.envs.base import Envs
from passel.envs.make import describe, make_envs, specs

__all__ = ["Envs", "describe", "make_envs", "specs"]
