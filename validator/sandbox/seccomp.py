"""seccomp: system calls that no model needs are refused.

A list of what is refused, not of what is allowed: torch, ONNX Runtime and CUDA together use more calls than anybody
has listed, and another set in every release. Files are not its business: bubblewrap and Landlock hide those.
"""

import errno
import os
from collections.abc import Iterator
from typing import Any

from validator.sandbox.confinement import Confinement
from validator.sandbox.level import Level

_ALWAYS = (
    # Other processes, and the kernel's larger surfaces.
    *("ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "pidfd_getfd", "kcmp"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "bpf", "perf_event_open", "userfaultfd"),
    *("keyctl", "add_key", "request_key", "fanotify_init", "lookup_dcookie", "nfsservctl", "vm86", "vm86old"),
    # Namespaces and file systems.
    *("unshare", "setns", "mount", "umount", "umount2", "pivot_root", "chroot", "move_mount", "open_tree"),
    *("open_tree_attr", "fsopen", "fsmount", "fsconfig", "fspick", "mount_setattr"),
    *("open_by_handle_at", "name_to_handle_at", "quotactl", "quotactl_fd", "mknod", "mknodat"),
    # The machine.
    *("init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "reboot", "swapon", "swapoff"),
    *("acct", "syslog", "settimeofday", "clock_settime", "clock_adjtime", "adjtimex", "stime"),
    *("sethostname", "setdomainname", "ioperm", "iopl", "vhangup"),
)

_METADATA = (
    *("chmod", "fchmod", "fchmodat", "fchmodat2", "chown", "fchown", "lchown", "fchownat", "truncate"),
    *(
        "setxattr",
        "lsetxattr",
        "fsetxattr",
        "setxattrat",
        "removexattr",
        "lremovexattr",
        "fremovexattr",
        "removexattrat",
    ),
)
"""What Landlock does not look at. Compilers need some of it."""

_SHARED = ("shmget", "shmat", "shmctl", "semget", "semop", "semctl", "msgget", "msgsnd", "msgrcv", "msgctl", "mq_open")
"""Old ways between processes of one user, that no file permission guards."""

_UNKNOWN = -1
_NEWER = {"fchmodat2": 452, "setxattrat": 463, "removexattrat": 466, "open_tree_attr": 467}
"""Calls that a libseccomp in use does not know by name; new calls have one number on every architecture."""
_CLONE_NEWUSER = 0x10000000
_CLONE_THREAD = 0x00010000
_F_SETOWN, _F_SETOWN_EX, _FIOSETOWN = 8, 15, 0x8901
_LOW = 0xFFFFFFFF
"""What the kernel looks at of such a command; a filter sees the upper half, too."""


def refuse_calls(confinement: Confinement) -> None:
    """Confine this thread, and all that it will start, for good. To be called before there are other threads.

    Raises:
        OSError: the kernel or libseccomp does not do it.
    """
    import pyseccomp

    program = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
    for name in refused_calls(confinement):
        if (number := _number_of(name)) is not None:
            program.add_rule(pyseccomp.ERRNO(errno.EPERM), number)
    _refuse_sockets(program, confinement)
    _refuse_processes(program, confinement)
    program.load()


def refused_calls(confinement: Confinement) -> Iterator[str]:
    """Yield the names of the calls that are refused whatever their arguments are."""
    yield from _ALWAYS
    if not confinement.profile.compiles:
        yield from ("execve", "execveat")
        yield from (*_METADATA, *_SHARED)
    if confinement.forbids_forks:
        yield from ("fork", "vfork")


def _number_of(name: str) -> int | None:
    """Return the number of a call; None: this machine's architecture or libseccomp does not know it."""
    import pyseccomp

    number = int(pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name))
    return _NEWER.get(name) if number == _UNKNOWN else number


def _refuse_sockets(program: Any, confinement: Confinement) -> None:
    """Refuse sockets of every family; CUDA and compilers keep local ones, which a namespace already closes in."""
    import socket

    import pyseccomp as sc

    denied = sc.ERRNO(errno.EACCES)
    if not (confinement.profile.gpu or confinement.profile.compiles):
        program.add_rule(denied, "socket")
        return
    program.add_rule(denied, "socket", sc.Arg(0, sc.NE, socket.AF_UNIX))


def _refuse_processes(program: Any, confinement: Confinement) -> None:
    """Refuse new user namespaces, and where nothing is compiled new processes and signals to any other."""
    import pyseccomp as sc

    # Its flags lie in memory, where no filter can look: who is told that it does not exist calls clone.
    program.add_rule(sc.ERRNO(errno.ENOSYS), "clone3")
    if confinement.forbids_forks:
        program.add_rule(sc.ERRNO(errno.EPERM), "clone", sc.Arg(0, sc.MASKED_EQ, _CLONE_THREAD, 0))
    program.add_rule(sc.ERRNO(errno.EPERM), "clone", sc.Arg(0, sc.MASKED_EQ, _CLONE_NEWUSER, _CLONE_NEWUSER))
    if confinement.level is Level.STANDARD and not confinement.profile.compiles:
        # Landlock knows of signals only since Linux 6.12, and of other processes' limits not at all.
        for name in ("kill", "tgkill", "tkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"):
            program.add_rule(sc.ERRNO(errno.EPERM), name, sc.Arg(0, sc.NE, os.getpid()))
        program.add_rule(sc.ERRNO(errno.EPERM), "pidfd_send_signal")
        # Whoever owns a pipe is sent a signal of its opener's choice when something comes.
        for name, command in (("fcntl", _F_SETOWN), ("fcntl", _F_SETOWN_EX), ("ioctl", _FIOSETOWN)):
            program.add_rule(sc.ERRNO(errno.EPERM), name, sc.Arg(1, sc.MASKED_EQ, _LOW, command))
        program.add_rule(sc.ERRNO(errno.EPERM), "prlimit64", sc.Arg(0, sc.NE, 0))
