from .imports import Imported as Imported
from .imports import ImportNote as ImportNote
from .imports import from_atif as from_atif
from .imports import from_requests as from_requests
from .program import Outcome as Outcome
from .program import ProgramEnv as ProgramEnv
from .programs import Endpoint as Endpoint
from .programs import ProgramResult as ProgramResult
