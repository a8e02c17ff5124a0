"""A service desk: an agent serves a customer by a policy, with tools over a database."""

from .environment import RetailDesk, RetailDeskConfig
from .tasks import RetailDeskTask

__all__ = ["RetailDesk", "RetailDeskConfig", "RetailDeskTask"]
