from .program import Outcome as Outcome
from .program import ProgramEnv as ProgramEnv
from .programs import Endpoint as Endpoint
from .programs import ProgramResult as ProgramResult
