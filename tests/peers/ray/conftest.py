"""A real Ray cluster of two nodes on this machine, with one CPU each, and a plug-in package for its workers."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
from ray.cluster_utils import Cluster

TESTS = Path(__file__).resolve().parents[2]
PLUGIN = '''
import envsdk
from envsdk_renderers._chatml import ChatML

class Adds(envsdk.Env):
    """One step, which reports the process that it ran in."""

    def start(self):
        return envsdk.Turn("What is 1 + 1?")

    def respond(self, reply):
        import os
        return envsdk.Turn(f"Process {os.getpid()}.", reward=1.0, terminated=True)

class Plugged(ChatML):
    """ChatML under another name."""

envsdk.register_env("plugged/Adds-v0", Adds)
'''
ENTRY_POINTS = """
[envsdk.environments]
plugged_in = plugged_in
[envsdk.renderers]
plugged = plugged_in:Plugged
"""


@pytest.fixture(scope="session")
def plugin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    (folder / "plugged_in.py").write_text(PLUGIN)
    metadata = folder / "plugged_in-0.1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-in\nVersion: 0.1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    return folder


@pytest.fixture(scope="session")
def cluster(plugin_folder: Path) -> Iterator[Cluster]:
    """The workers import what is in `tests`, and the plug-in, since nodes pass their environment on to them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(plugin_folder)]))
        patch.setattr(sys, "path", [*sys.path, str(plugin_folder)])
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        made.add_node(num_cpus=1)
        patch.setenv("RAY_ADDRESS", made.address)
        yield made
        made.shutdown()
