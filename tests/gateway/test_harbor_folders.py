"""Task folders of Harbor: what is read, and what is refused."""

import os
from pathlib import Path
from typing import Any

import pytest

from envsdk.adapters import HarborProgram, HarborTask
from envsdk.errors import ConfigError, TaskError
from envsdk.gateway._harbor_folders import HarborFolder, read_folder


def folder(parent: Path, toml: str = "", *, name: str = "task", **files: str) -> Path:
    """Write a task folder."""
    path = parent / name
    written = {
        "task.toml": toml,
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": "FROM ubuntu:24.04\n",
        "tests/test.sh": "#!/bin/sh\n",
        **{file.replace("__", "/"): text for file, text in files.items()},
    }
    for file, text in written.items():
        (path / file).parent.mkdir(parents=True, exist_ok=True)
        (path / file).write_text(text)
    return path


def read(path: Path, environ: Any = None, *, offline: bool = False) -> HarborFolder:
    return read_folder(path, environ or {}, offline=offline)


def test_a_folder_without_settings_has_the_defaults_of_harbor(tmp_path: Path):
    task = read(folder(tmp_path))
    assert task.instruction == "Do it.\n"
    assert (task.file.agent.timeout_sec, task.file.verifier.timeout_sec) == (None, 600.0)
    assert (task.grader, task.artifacts) == (None, ("/logs/artifacts",))
    assert (task.box.workdir, task.box.user, task.box.allow, task.box.build_timeout_s) == ("", None, (), 600.0)
    assert task.box.dockerfile == tmp_path / "task" / "environment"


def test_limits_of_both_generations_are_honored(tmp_path: Path):
    new = '[environment]\ncpus = 2\nmemory_mb = 512\nstorage_mb = 300\nworkdir = "/srv"\n[agent]\nuser = 1000\n'
    box = read(folder(tmp_path, new)).box
    assert (box.cpus, box.memory_mib, box.disk_mib, box.workdir, box.user) == (2.0, 512, 300, "/srv", "1000")
    old = read(folder(tmp_path, 'version = "1.0"\n[environment]\nmemory = "2G"\nstorage = "500M"\n', name="old")).box
    assert (old.memory_mib, old.disk_mib) == (2048, 500)


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("[environment]\ngpus = 1", "environment.gpus"),
        ('[environment.tpu]\ntype = "v4"\ntopology = "2x2"', "environment.tpu"),
        ('[[environment.mcp_servers]]\nname = "x"\nurl = "http://x"', "environment.mcp_servers"),
        ('[environment]\nskills_dir = "/skills"', "environment.skills_dir"),
        ('[environment]\nos = "windows"', "environment.os"),
        ('[environment]\nnetwork_mode = "public"', "environment.network_mode"),
        ("[environment]\nallow_internet = true", "environment.allow_internet"),
        ('[agent]\nnetwork_mode = "public"', "agent.network_mode"),
        ('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["*.example.com"]', "environment.allowed_hosts"),
        ('[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["10.0.0.0/8"]', "environment.allowed_hosts"),
        ('[verifier.environment]\ngpus = 1', "verifier.environment.gpus"),
        ('[[steps]]\nname = "one"', "steps"),
        ('[[artifacts]]\nsource = "/x"\nexclude = ["*.o"]', "artifacts.exclude"),
        ('[[artifacts]]\nsource = "/x"\nservice = "db"', "artifacts.service"),
        ('[[verifier.collect]]\ncommand = "x"\nservice = "db"', "verifier.collect.service"),
    ],
)  # fmt: skip
def test_what_is_not_supported_is_refused_with_its_name(tmp_path: Path, toml: str, named: str):
    with pytest.raises(TaskError, match=named.replace(".", r"\.")):
        read(folder(tmp_path, toml))


@pytest.mark.parametrize("file", ["environment/docker-compose.yaml", "trajectory.json", "tests/.harborignore"])
def test_files_that_are_not_supported_are_refused_with_their_names(tmp_path: Path, file: str):
    with pytest.raises(TaskError, match=file):
        read(folder(tmp_path, "", **{file: ""}))


def test_a_field_that_harbor_does_not_have_is_refused(tmp_path: Path):
    with pytest.raises(TaskError, match=r"environment\.memory_gb"):
        read(folder(tmp_path, "[environment]\nmemory_gb = 1"))


def test_what_harbor_ignores_next_to_its_own_tables_is_ignored(tmp_path: Path):
    task = read(folder(tmp_path, 'level = "hard"\n[tags]\ndomain = "data"\n[agent]\ntimeout_sec = 9'))
    assert task.file.agent.timeout_sec == 9.0


def test_a_task_of_several_steps_is_refused_for_these_and_not_for_its_instruction(tmp_path: Path):
    path = folder(tmp_path, '[[steps]]\nname = "one"')
    (path / "instruction.md").unlink()
    with pytest.raises(TaskError, match="not supported: steps"):
        read(path)


def test_hosts_that_cannot_be_allowed_are_left_out_on_request(tmp_path: Path):
    hosts = '["*.example.com", "pypi.org", "10.0.0.0/8"]'
    path = folder(tmp_path, f'[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = {hosts}')
    assert read(path, offline=True).box.allow == ("pypi.org:443", "pypi.org:80")


def test_a_task_that_asks_for_the_internet_is_run_without_it_on_request(tmp_path: Path):
    path = folder(tmp_path, "[environment]\nallow_internet = true")
    assert read(path, offline=True).box.allow == ()


def test_hosts_of_the_allowlist_are_reached_by_http_and_https_in_the_phase_that_names_them(tmp_path: Path):
    toml = '[environment]\nnetwork_mode = "allowlist"\nallowed_hosts = ["PyPI.org."]\n'
    task = read(folder(tmp_path, toml + '[verifier]\nnetwork_mode = "no-network"'))
    assert (task.box.allow, task.grader_allow) == (("pypi.org:443", "pypi.org:80"), ())


def test_variables_come_from_the_option_and_never_from_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SECRET", "of this machine")
    path = folder(
        tmp_path, '[environment.env]\nA = "${SECRET}"\nB = "${NAME:-x:y}"\nC = "plain $HOME"\nD = "${EMPTY:-}"'
    )
    with pytest.raises(TaskError, match="SECRET"):
        read(path)
    assert read(path, {"SECRET": "1"}).box.environ == {"A": "1", "B": "x:y", "C": "plain $HOME", "D": ""}


def test_a_separate_verifier_has_its_image(tmp_path: Path):
    own = read(folder(tmp_path, '[verifier]\nenvironment_mode = "separate"', tests__Dockerfile="FROM x\n"))
    assert own.grader is not None and own.has_own_tests and own.grader.dockerfile == own.path / "tests"
    image = read(folder(tmp_path, '[verifier.environment]\ndocker_image = "y"', name="image"))
    assert image.grader is not None and image.has_own_tests and image.grader.image == "y"
    same = read(folder(tmp_path, "[verifier.environment]\nmemory_mb = 99", name="same"))
    assert same.grader is not None and not same.has_own_tests
    assert (same.grader.memory_mib, same.grader.dockerfile) == (99, same.path / "environment")


def test_lines_with_a_canary_are_not_shown(tmp_path: Path):
    text = "<!-- a canary GUID 1 -->\n# canary 2\n\nDo it.\n# canary 3\n"
    assert read(folder(tmp_path, **{"instruction.md": text})).instruction == "Do it.\n# canary 3\n"


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path):
    path = folder(tmp_path)
    (path / "tests" / "secret").symlink_to("/etc/passwd")
    with pytest.raises(TaskError, match="secret"):
        read(path)


def test_a_folder_that_is_a_link_out_of_the_task_is_refused(tmp_path: Path):
    path = folder(tmp_path)
    (path / "solution").symlink_to(tmp_path)
    with pytest.raises(TaskError, match="solution"):
        read(path)


def test_a_pipe_is_refused(tmp_path: Path):
    path = folder(tmp_path)
    os.mkfifo(path / "environment" / "pipe")
    with pytest.raises(TaskError, match="pipe"):
        read(path)


@pytest.mark.parametrize("name", ["instruction.md", "tests/test.sh", "environment/Dockerfile"])
def test_a_missing_file_is_named(tmp_path: Path, name: str):
    path = folder(tmp_path)
    (path / name).unlink()
    with pytest.raises(TaskError, match=name):
        read(path)


@pytest.mark.parametrize(
    "toml",
    ["[environment", "a = " + "[" * 100_000, "x = 1\n" * 300_000, "[agent]\ntimeout_sec = nan",
     "[agent]\ntimeout_sec = -1", "[environment]\nmemory_mb = 1", '[environment]\nmemory = "much"',
     '[environment.env]\n"A=B" = "1"',
     '[agent]\nuser = "a b"', '[environment]\ndocker_image = "--privileged"'],
)  # fmt: skip
def test_a_file_that_is_not_valid_is_a_task_error(tmp_path: Path, toml: str):
    with pytest.raises(TaskError):
        read(folder(tmp_path, toml))


def test_a_folder_of_tasks_has_their_names_as_tasks(tmp_path: Path):
    for name in ("b", "a", "ü ✓"):
        folder(tmp_path, name=name)
    assert HarborTask(tasks=tmp_path).tasks == ["a", "b", "ü ✓"]
    assert HarborTask(tasks=[tmp_path / "b"]).tasks == ["b"]
    halves = [HarborTask(tasks=tmp_path, split=split).tasks for split in ("train",)]
    assert halves and set(halves[0]) <= {"a", "b", "ü ✓"}


def test_two_tasks_with_the_same_name_are_refused(tmp_path: Path):
    folder(tmp_path / "x"), folder(tmp_path / "y")
    with pytest.raises(TaskError, match="two tasks have the name 'task'"):
        HarborTask(tasks=[tmp_path / "x", tmp_path / "y"])


def test_a_folder_without_tasks_is_refused(tmp_path: Path):
    with pytest.raises(TaskError, match=r"task\.toml"):
        HarborTask(tasks=tmp_path)


def test_tasks_that_are_refused_can_be_left_out(tmp_path: Path):
    folder(tmp_path, name="good"), folder(tmp_path, "[environment]\ngpus = 1", name="bad")
    with pytest.raises(TaskError, match="only_supported"):
        HarborTask(tasks=tmp_path)
    assert HarborTask(tasks=tmp_path, only_supported=True).tasks == ["good"]


def test_a_program_needs_a_command_or_an_agent(tmp_path: Path):
    with pytest.raises(ConfigError, match="either command"):
        HarborProgram(tasks=folder(tmp_path))
