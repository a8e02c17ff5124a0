from ._agents import agents as agents
from ._imports import ImportResult as ImportResult
from ._imports import from_atif as from_atif
from ._imports import from_requests as from_requests
from ._program import ProgramEnv as ProgramEnv
from ._programs import Endpoint as Endpoint
from ._programs import ProgramResult as ProgramResult
