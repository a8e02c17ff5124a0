"""System call numbers on each supported machine architecture."""

import platform

from ..errors import SandboxUnavailable

MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""The column of `NUMBERS`, and the kernel's constant for the architecture (`AUDIT_ARCH_*` in linux/audit.h)."""

_TABLE = """
accept 43 202; accept4 288 242; access 21 -; alarm 37 -; arch_prctl 158 -; bind 49 200; brk 12 214; capget 125 90;
capset 126 91; chdir 80 49; chmod 90 -; chown 92 -; chroot 161 51; clock_getres 229 114; clock_gettime 228 113;
clock_nanosleep 230 115; clock_settime 227 112; clone 56 220; close 3 57; close_range 436 436; connect 42 203;
creat 85 -; dup 32 23; dup2 33 -; dup3 292 24; epoll_create 213 -; epoll_create1 291 20; epoll_ctl 233 21;
epoll_pwait 281 22; epoll_pwait2 441 441; epoll_wait 232 -; execve 59 221; execveat 322 281; exit 60 93;
exit_group 231 94; faccessat 269 48; faccessat2 439 439; fadvise64 221 223; fallocate 285 47; fchdir 81 50;
fchmod 91 52; fchmodat 268 53; fchown 93 55; fchownat 260 54; fcntl 72 25; fdatasync 75 83; fgetxattr 193 10;
flistxattr 196 13; flock 73 32; fork 57 -; fremovexattr 199 16; fsetxattr 190 7; fstat 5 80; fstatfs 138 44;
fsync 74 82; ftruncate 77 46; futex 202 98; getcwd 79 17; getdents64 217 61; getegid 108 177; geteuid 107 175;
getgid 104 176; getgroups 115 158; getitimer 36 102; getpeername 52 205; getpgid 121 155; getpgrp 111 -;
getpid 39 172; getppid 110 173; getpriority 140 141; getrandom 318 278; getresgid 120 150; getresuid 118 148;
getrusage 98 165; getsid 124 156; getsockname 51 204; getsockopt 55 209; gettid 186 178; gettimeofday 96 169;
getuid 102 174; getxattr 191 8; ioctl 16 29; ioprio_set 251 30; kill 62 129; lchown 94 -; lgetxattr 192 9;
link 86 -; linkat 265 37; listen 50 201; listxattr 194 11; llistxattr 195 12; lremovexattr 198 15; lseek 8 62;
lsetxattr 189 6; lstat 6 -; madvise 28 233; memfd_create 319 279; mkdir 83 -; mkdirat 258 34; mknod 133 -;
mknodat 259 33; mmap 9 222; mount 165 40; mprotect 10 226; mremap 25 216; msync 26 227; munmap 11 215;
nanosleep 35 101; newfstatat 262 79; open 2 -; openat 257 56; pause 34 -; pipe 22 -; pipe2 293 59;
pivot_root 155 41; poll 7 -; ppoll 271 73; prctl 157 167; pread64 17 67; preadv 295 69; preadv2 327 286;
prlimit64 302 261; pselect6 270 72; ptrace 101 117; pwrite64 18 68; pwritev 296 70; pwritev2 328 287; read 0 63;
readlink 89 -; readlinkat 267 78; readv 19 65; recvfrom 45 207; recvmsg 47 212; removexattr 197 14; rename 82 -;
renameat 264 38; renameat2 316 276; restart_syscall 219 128; rmdir 84 -; rseq 334 293; rt_sigaction 13 134;
rt_sigpending 127 136; rt_sigprocmask 14 135; rt_sigreturn 15 139; rt_sigsuspend 130 133; rt_sigtimedwait 128 137;
sched_getaffinity 204 123; sched_setaffinity 203 122; sched_setparam 142 118; sched_setscheduler 144 119;
sched_yield 24 124; select 23 -; sendfile 40 71; sendmsg 46 211; sendto 44 206; set_robust_list 273 99;
set_tid_address 218 96; setfsgid 123 152; setfsuid 122 151; setgid 106 144; setgroups 116 159; sethostname 170 161;
setitimer 38 103; setns 308 268; setpgid 109 154; setpriority 141 140; setregid 114 143; setresgid 119 149;
setresuid 117 147; setreuid 113 145; setsid 112 157; setsockopt 54 208; settimeofday 164 170; setuid 105 146;
setxattr 188 5; shutdown 48 210; sigaltstack 131 132; socket 41 198; socketpair 53 199; splice 275 76; stat 4 -;
statfs 137 43; statx 332 291; symlink 88 -; symlinkat 266 36; sync 162 81; syncfs 306 267; sysinfo 99 179;
tgkill 234 131; time 201 -; times 100 153; tkill 200 130; truncate 76 45; umask 95 166; umount2 166 39;
uname 63 160; unlink 87 -; unlinkat 263 35; unshare 272 97; utimensat 280 88; vfork 58 -; wait4 61 260;
waitid 247 95; write 1 64; writev 20 66
"""
"""Each call with its numbers on x86_64 and aarch64, `-` for none, from the Linux headers (asm/unistd_64.h,
asm-generic/unistd.h)."""
NUMBERS: dict[str, tuple[int | None, ...]] = {
    name: tuple(None if number == "-" else int(number) for number in numbers)
    for name, *numbers in (entry.split() for entry in _TABLE.replace("\n", " ").split(";"))
}


def machine() -> tuple[int, int]:
    """Return this machine's column of `NUMBERS`, and the kernel's constant for its architecture.

    Raises:
        SandboxUnavailable: If the architecture is not supported.
    """
    found = MACHINES.get(platform.machine())
    if found is None:
        raise SandboxUnavailable(f"this machine is {platform.machine()}; the sandbox supports {' and '.join(MACHINES)}")
    return found


def system_call(name: str) -> int:
    """Return the number of a system call on this machine.

    Raises:
        SandboxUnavailable: If the architecture is not supported, or has no such call.
    """
    number = NUMBERS[name][machine()[0]]
    if number is None:
        raise SandboxUnavailable(f"{platform.machine()} has no system call {name!r}")
    return number
