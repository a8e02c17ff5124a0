"""The page about adapters: the code that needs no other package runs; the rest is run in tests/peers/adapters."""

import subprocess
import sys

from adapters import page


def test_the_code_of_its_page_runs():
    page.run(sections=2)


def test_importing_envsdk_or_an_adapter_imports_no_other_package():
    program = (
        "import envsdk, sys\n"
        "assert not any(name.startswith('envsdk.authoring.adapters') for name in sys.modules)\n"
        "from envsdk.adapters import Dataset, MCPServer, ReasoningGym\n"
        "assert not {'reasoning_gym', 'mcp', 'anyio', 'sympy', 'datasets'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=600)
