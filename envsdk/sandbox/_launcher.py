"""Confines a program, starts it, and reports how it ended. It runs in a separate process.

It is sent to a bare interpreter as compiled code. It uses only the standard library, and imports little of it, because
its imports add to the time of every run. It writes its reports to a pipe: `child PID`, `started`, `exit STATUS`, or
`error TEXT`.

With namespaces, there are three processes: this one, outside; process 1 inside, with which all other processes inside
end; and the program. If bubblewrap creates the namespaces, bubblewrap is the first of the three, and this process is
process 1. Without namespaces, there are two processes. SIGTERM to the first process ends all of them.

Run as a script, it starts an agent program, which is not confined, but sees a folder at another path: `show_at`.
"""

# pathlib is slow to import:
# ruff: noqa: PTH102, PTH103, PTH106, PTH112, PTH120, PTH123, PTH208, PTH211

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable

    from ._job import Instruction, Root, SandboxJob
else:
    import _signal as signal  # `signal` creates enums from it, which takes a sixth of the time of a run

NOBODY = 65534
OWN_PID, OWN_FILE = -1, -2  # the same as in job.py, which cannot be imported here

# Constants of Linux: linux/sched.h, linux/mount.h, linux/prctl.h, linux/capability.h, linux/landlock.h.
NEW_MOUNTS, NEW_PROCESSES, NEW_USER = 0x00020000, 0x20000000, 0x10000000
NEW_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000  # mounts, UTS, IPC, processes, network
NO_SETUID, NO_DEVICES, BIND, RECURSIVE, PRIVATE = 0x2, 0x4, 0x1000, 0x4000, 0x40000
UNMOUNT_LAZILY = 2
MOUNT_SETATTR, HERE, ALL_BENEATH, READ_ONLY = 442, -100, 0x8000, 0x1
EMPTY_PATH = 0x1000
PARENT_DEATH_SIGNAL, DUMPABLE, SECCOMP, CHILD_SUBREAPER, NO_NEW_PRIVILEGES, SECCOMP_FILTER = 1, 4, 22, 36, 38, 2
CAPABILITIES_VERSION = 0x20080522
CREATE_RULESET, ADD_RULE, RESTRICT_SELF, PATH_BENEATH = 444, 445, 446, 1
FILES_BY_VERSION = {1: 0x1FFF, 2: 0x3FFF, 3: 0x7FFF, 5: 0xFFFF}  # the rights that each version of Landlock supports
NETWORK_VERSION, TCP = 4, 0x3
SCOPE_VERSION, SIGNALS_AND_ABSTRACT_SOCKETS = 6, 0x3

libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long


def start(job: SandboxJob) -> None:
    """Run the program of a job, and end after it."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if it is ignored, wait() cannot return exit statuses
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # until there is a child to pass it on to
    given, job["control"] = job["control"], os.dup(job["control"])  # below the number that `opened_for_once` takes
    os.close(given)
    is_wrapped = job["root"] is not None and job["root"]["is_wrapped"]
    guarded(inside_bubblewrap if is_wrapped else outside, job)


def guarded(function: Callable[[SandboxJob], None], job: SandboxJob) -> None:
    """Call a function, report an exception, and end the process."""
    try:
        function(job)
    except BaseException as error:
        report(job, f"error {type(error).__name__}: {error}")
        os._exit(1)
    os._exit(0)


def report(job: SandboxJob, line: str) -> None:
    """Send a line to the process that started the launcher."""
    os.write(job["control"], f"{line}\n".encode(errors="replace"))


def forked(function: Callable[[SandboxJob], None], job: SandboxJob) -> int:
    """Call a function in a child process, which ends with this one. Return its id."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        end_with_parent(signal.SIGKILL)
        if os.getppid() in (parent, 0):  # 0: outside the namespace; others: the parent has ended
            guarded(function, job)
        os._exit(1)
    return child


def show_at(source: str, target: str, folder: str, *command: str) -> None:
    """Run a program that sees one folder in place of another, and no processes but its own. It is as free as this one.

    Args:
        source: The folder.
        target: The path at which the program sees it, an existing folder.
        folder: The folder that the program starts in, as it sees it.
        command: The program and its arguments.
    """
    os.close(enter_namespaces(NEW_MOUNTS | NEW_PROCESSES)[0])
    call("mount", None, b"/", None, RECURSIVE | PRIVATE, None)
    call("mount", os.fsencode(source), os.fsencode(target), None, BIND | RECURSIVE, None)
    end_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it is for the program
    ended, reported = os.pipe()
    if os.fork() == 0:  # process 1, with which the kernel ends all others
        end_with_parent(signal.SIGKILL)
        call("mount", b"proc", b"/proc", b"proc", NO_SETUID | NO_DEVICES, None)
        child = os.fork()
        if child == 0:
            for number in (signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores the last two
                signal.signal(number, signal.SIG_DFL)
            os.chdir(folder)
            os.execvp(command[0], command)
        process, status = os.wait()
        while process != child:
            process, status = os.wait()
        os.write(reported, str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    os.close(reported)
    status = int(os.read(ended, 16) or 1)
    os.wait()
    if status < 0:  # a signal ended it
        if -status != signal.SIGKILL:
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


# The processes.


def outside(job: SandboxJob) -> None:
    """Run as the first process: create the namespaces, start the child, and end all processes after it."""
    os.umask(0o022)
    be_first_to_go()
    if job["root"] is not None:
        root = job["root"]
        process, user, group = enter_namespaces(NEW_NAMESPACES)
        build_root(root)
        finish_root(root, job["code"])
        call("sethostname", b"sandbox", 7)
        become_nobody(process, user, group)
    end_with_parent(signal.SIGTERM)
    if os.getppid() != job["parent"]:
        return  # the parent has ended
    is_free = job["filter"] is None
    if is_free and hasattr(libc, "prctl"):
        call("prctl", CHILD_SUBREAPER, 1, 0, 0, 0)  # each descendant whose own parent ends becomes a child
    child = forked(first_inside if job["root"] else program, job)
    report(job, f"child {child}")
    signal.signal(signal.SIGTERM, lambda _number, _frame: os.kill(child, signal.SIGKILL))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # until waitpid, the id is not reused
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    if job["root"] is None:
        os.killpg(child, signal.SIGKILL)  # its child processes, if it could start any
    _, status = os.waitpid(child, 0)
    while is_free and (orphans := children()):  # without a filter, they may have left its process group
        for number in orphans:
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
    if job["root"] is None:
        report(job, f"exit {os.waitstatus_to_exitcode(status)}")


def inside_bubblewrap(job: SandboxJob) -> None:
    """Run as process 1 of bubblewrap's namespace: finish the setup, then continue as `first_inside`.

    This process keeps bubblewrap's user, because bubblewrap may end it only then. The program gets a different user.
    """
    os.umask(0o022)
    be_first_to_go()
    processes = os.open("/proc", os.O_PATH | os.O_DIRECTORY)
    call("umount2", b"/proc", UNMOUNT_LAZILY)
    os.rmdir("/proc")
    if job["root"] is not None:
        finish_root(job["root"], job["code"])

    def as_nobody(job: SandboxJob) -> None:
        process = os.open("self", os.O_PATH | os.O_DIRECTORY, dir_fd=processes)
        become_nobody(process, os.geteuid(), os.getegid())
        program(job)

    first_inside(job, as_nobody)


def first_inside(job: SandboxJob, become: Callable[[SandboxJob], None] | None = None) -> None:
    """Run as process 1 of the namespace: wait for the program. After it, the kernel ends all processes inside."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # so that process 1 ignores all signals from inside
    child = forked(become or program, job)
    drop_capabilities()
    ended, status = os.wait()
    while ended != child:
        ended, status = os.wait()
    report(job, f"exit {os.waitstatus_to_exitcode(status)}")


def program(job: SandboxJob) -> None:
    """Confine this process and execute the program."""
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    os.chdir(job["folder"])
    once = opened_for_once(job)
    if job["filter"] is not None:
        call("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        drop_capabilities()
    if job["rules"] is not None:
        restrict_files(job["rules"])
    instructions = packed(job["filter"] or [], {OWN_PID: os.getpid(), OWN_FILE: once})
    report(job, "started")
    for name, soft, hard in job["limits"]:
        which = getattr(resource, name)
        lowest = [value for value in resource.getrlimit(which) if value != resource.RLIM_INFINITY]
        resource.setrlimit(which, (min([soft, *lowest]), min([hard, *lowest])))
    if instructions:
        restrict_system_calls(instructions)
    if job["execveat"] is None:
        os.execve(job["arguments"][0], job["arguments"], {})
    arguments = (ctypes.c_char_p * (len(job["arguments"]) + 1))(*map(os.fsencode, job["arguments"]), None)
    call("syscall", job["execveat"], once, b"", arguments, (ctypes.c_char_p * 1)(None), EMPTY_PATH)


def opened_for_once(job: SandboxJob) -> int:
    """Open the program's file under a number that the program can never open a file under, or return -1.

    The filter lets only this number be executed, and it is closed then. So the program executes nothing else: a thread
    that does is no longer ended with its parent.
    """
    if job["execveat"] is None:
        return -1
    number = next(soft for name, soft, _ in job["limits"] if name == "RLIMIT_NOFILE")
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    number = number if hard == resource.RLIM_INFINITY else min(number, hard - 1)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    file = os.open(job["arguments"][0], os.O_PATH)
    os.dup2(file, number, inheritable=False)
    os.close(file)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, number))
    return number


def end_with_parent(how: int) -> None:
    """Request a signal for the end of the parent process (Linux only)."""
    if hasattr(libc, "prctl"):
        call("prctl", PARENT_DEATH_SIGNAL, int(how), 0, 0, 0)


def children() -> list[int]:
    """Return the ids of this process's children (Linux only)."""
    found: list[int] = []
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else []:
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", encoding="ascii", errors="replace") as file:
                    parent = file.read().rpartition(")")[2].split()[1]
            except OSError:
                continue  # the process has ended
            if parent == str(os.getpid()):
                found.append(int(name))
    return found


def be_first_to_go() -> None:
    """Make the kernel kill this process before its parent if the machine runs out of memory."""
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass  # it is optional


# Namespaces.


def enter_namespaces(kinds: int) -> tuple[int, int, int]:
    """Enter new namespaces, as the same user; return this process's folder of /proc, opened, its user and its group."""
    process = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY)
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        call("unshare", kinds)
    else:
        call("unshare", NEW_USER | kinds)
        map_user(process, user, user, group, group)
    return process, user, group


def become_nobody(process: int, user: int, group: int) -> None:
    """Become a user without rights, in a new user namespace, which counts its processes separately."""
    if user == 0:
        user = group = NOBODY
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)
        call("prctl", DUMPABLE, 1, 0, 0, 0)  # otherwise its own files in /proc belong to root
    call("unshare", NEW_USER)
    map_user(process, NOBODY, user, NOBODY, group)


def map_user(process: int, user: int, outer_user: int, group: int, outer_group: int) -> None:
    """Map the only user and group of the new user namespace to those outside."""
    lines = {"setgroups": "deny", "uid_map": f"{user} {outer_user} 1", "gid_map": f"{group} {outer_group} 1"}
    for name, line in lines.items():
        file = os.open(name, os.O_WRONLY, dir_fd=process)
        os.write(file, line.encode())
        os.close(file)


def build_root(root: Root) -> None:
    """Build the file system that the program sees, and unmount everything else."""
    call("mount", None, b"/", None, RECURSIVE | PRIVATE, None)
    mount_memory(root["staging"], "mode=755,size=1m")
    os.chdir(root["staging"])
    os.mkdir(".old")
    call("syscall", root["pivot_root"], b".", b".old")
    os.chdir("/")
    os.mkdir("/.empty")
    for source, target in root["mounts"]:
        source = f"/.old{source}"
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_WRONLY))
        call("mount", source.encode(), target.encode(), None, BIND | RECURSIVE, None)
    for folder in root["hidden"]:
        call("mount", b"/.empty", folder.encode(), None, BIND, None)
    call("umount2", b"/.old", UNMOUNT_LAZILY)
    os.rmdir("/.old")


def finish_root(root: Root, code: bytes) -> None:
    """Make the file system read-only, and add the writable folder."""
    os.mkdir(root["folder"])
    if os.path.isdir("/dev"):
        os.symlink(root["folder"], "/dev/shm")
    attributes = struct.pack("=QQQQ", READ_ONLY | NO_SETUID, 0, 0, 0)
    call("syscall", MOUNT_SETATTR, HERE, b"/", ALL_BENEATH, attributes, len(attributes))
    mount_memory(root["folder"], root["disk"])
    with open(f"{root['folder']}/main.py", "wb") as file:
        file.write(code)


def mount_memory(folder: str, options: str) -> None:
    """Mount an empty tmpfs on a folder."""
    call("mount", b"tmpfs", folder.encode(), b"tmpfs", NO_SETUID | NO_DEVICES, options.encode())


# What a process may do.


def restrict_files(rules: list[tuple[str, int]]) -> None:
    """Restrict this process to the rights in the rules, of all rights that Landlock supports."""
    version = call("syscall", CREATE_RULESET, None, 0, 1)
    if version < 3:
        raise OSError(f"Landlock has version {version}; expected at least 3 (Linux 6.2), which restricts truncation")
    handled = FILES_BY_VERSION[max(known for known in FILES_BY_VERSION if known <= version)]
    network = TCP if version >= NETWORK_VERSION else 0
    scoped = SIGNALS_AND_ABSTRACT_SOCKETS if version >= SCOPE_VERSION else 0
    ruleset = call("syscall", CREATE_RULESET, struct.pack("=QQQ", handled, network, scoped), 24, 0)
    for path, rights in rules:
        file = os.open(path, os.O_PATH)
        call("syscall", ADD_RULE, ruleset, PATH_BENEATH, struct.pack("=Qi", rights & handled, file), 0)
        os.close(file)
    call("syscall", RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def drop_capabilities() -> None:
    """Drop all capabilities, even as root. PR_SET_NO_NEW_PRIVS keeps them from coming back."""
    call("capset", struct.pack("=Ii", CAPABILITIES_VERSION, 0), bytes(24))


def packed(instructions: list[Instruction], own: dict[int, int]) -> bytes:
    """Convert a filter to the kernel's format, with the values for OWN_PID and OWN_FILE."""
    return b"".join(
        struct.pack("=HBBI", code, then, otherwise, own.get(value, value))
        for code, then, otherwise, value in instructions
    )


def restrict_system_calls(instructions: bytes) -> None:
    """Install the seccomp filter."""
    address = ctypes.cast(ctypes.c_char_p(instructions), ctypes.c_void_p).value or 0
    call("prctl", SECCOMP, SECCOMP_FILTER, struct.pack("@HP", len(instructions) // 8, address), 0, 0)


def call(name: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char_p] | None) -> int:
    """Call a function of the C library.

    Raises:
        OSError: If it fails. The text names the function.
    """
    result = getattr(libc, name)(*arguments)
    if result < 0:
        number = ctypes.get_errno()
        called = f"{name} {arguments[0]}" if name == "syscall" else name
        raise OSError(number, f"{called}: {os.strerror(number)}")
    return result


if __name__ == "__main__":
    show_at(*sys.argv[1:])
