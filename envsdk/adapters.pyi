from .authoring.adapters._dataset import Dataset as Dataset
from .authoring.adapters._gymnasium_images import GymnasiumImages as GymnasiumImages
from .authoring.adapters._gymnasium_text import GymnasiumText as GymnasiumText
from .authoring.adapters._mcp import MCPServer as MCPServer
from .authoring.adapters._mcp import MCPServerError as MCPServerError
from .authoring.adapters._reasoning_gym import ReasoningGym as ReasoningGym
from .gateway._harbor import HarborProgram as HarborProgram
from .gateway._harbor import HarborTask as HarborTask
