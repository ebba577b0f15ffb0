"""A host of the emulated cluster: namespaces of the kernel that exist as long as one sleeping process holds them.

No name is given to anything outside: no entry of `ip netns`, no mount, no interface of the machine's own network. When the last
process of a host is gone, the kernel removes all that belonged to it, whatever happened to the script.
"""
import ctypes
import os
import shutil
import signal
import socket
import time

from sweep_process import libc, marked, parent, start_time

CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC, CLONE_NEWNET = 0x20000, 0x04000000, 0x08000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
KINDS = (("ipc", CLONE_NEWIPC), ("uts", CLONE_NEWUTS), ("net", CLONE_NEWNET), ("mnt", CLONE_NEWNS))  # mnt last: paths change with it
MARK = "THINWIRE_LAB"  # environment of every process of a lab; the value is the lab's state directory


class LabError(Exception):
    """One message for the user."""


def call(name, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"{name}: {os.strerror(error)}")


def mount(source, target, kind, flags, data=b""):
    call("mount", source.encode(), target.encode(), kind.encode() if kind else None, ctypes.c_ulong(flags), data or None)


def namespace_id(pid):
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def close_all_but(keep):
    """A host outlives the script, so it must not keep files or locks of its caller."""
    for fd in (int(f) for f in os.listdir("/proc/self/fd")):
        if fd > 2 and fd not in keep:
            try:
                os.close(fd)
            except OSError:
                pass


def furnish(name, hosts_file):
    """Called in new namespaces: mounts and settings that make them look like a machine of its own."""
    mount("none", "/", None, MS_REC | MS_PRIVATE)  # nothing mounted below is seen outside
    mount("thinwire-lab", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, b"mode=1777")
    mount("thinwire-lab", "/sys", "sysfs", MS_NOSUID | MS_NODEV | MS_NOEXEC)  # /sys/class/net of this network
    if os.path.exists("/etc/hosts"):
        mount(hosts_file, "/etc/hosts", None, MS_BIND)
    socket.sethostname(name)
    for which in ("all", "default"):  # no chatter of neighbour discovery in the counters
        try:
            with open(f"/proc/sys/net/ipv6/conf/{which}/disable_ipv6", "w", encoding="ascii") as f:
                f.write("1")
        except OSError:
            pass


def start_holder(lab, directory, name, hosts_file, lock):
    """Starts the process that holds the namespaces of host `name`; returns what `down` must know of it.

    Until the holder carries its mark (a new environment shows with the exec) nobody could find it. So it keeps the lab's lock, an
    open file that the exec closes, until then: whoever ends a half-made lab waits for that, even when the caller was killed.
    """
    told, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            for s in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(s, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            close_all_but({tell, lock})
            os.set_inheritable(tell, False)  # closed by the exec: that is the good news
            os.environ[MARK] = directory
            os.chdir("/")
            call("unshare", CLONE_NEWNS | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWNET)
            furnish(name, hosts_file)
            os.execv(shutil.which("sleep"), [f"thinwire-lab:{lab}:{name}", "infinity"])
        except BaseException as e:  # pylint: disable=broad-except
            os.write(tell, str(e).encode()[:500])
        finally:
            os._exit(1)
    os.close(tell)
    bad = os.read(told, 512)
    os.close(told)
    if bad:
        os.waitpid(pid, 0)
        raise LabError(f"cannot make namespaces for host {name} ({bad.decode()}); in a container, CAP_SYS_ADMIN and CAP_NET_ADMIN are needed "
                       "(docker run --privileged)")
    return {"pid": pid, "start": start_time(pid), "net": namespace_id(pid)}


def alive(holder):
    return holder["start"] is not None and start_time(holder["pid"]) == holder["start"]


def enter(holder, kinds=("ipc", "uts", "net", "mnt")):
    """Moves the calling process into the namespaces of a host; the working directory stays."""
    here = os.getcwd()
    opened = [(os.open(f"/proc/{holder['pid']}/ns/{kind}", os.O_RDONLY | os.O_CLOEXEC), flag) for kind, flag in KINDS if kind in kinds]
    for fd, flag in opened:
        call("setns", fd, flag)
        os.close(fd)
    if "mnt" in kinds:
        try:
            os.chdir(here)
        except OSError:
            os.chdir("/")


def ancestors():
    line, pid = set(), os.getpid()
    while pid > 0:
        line.add(pid)
        pid = parent(pid)
    return line


def members(directory, holders):
    """All live processes of a lab: those in a network namespace of it, and those started by it wherever they went since."""
    everyone = {int(p): namespace_id(p) for p in os.listdir("/proc") if p.isdigit()}
    found = set(marked([directory], MARK)) & set(everyone)
    # Numbers of namespaces are used again, so a recorded one counts only while its holder or a marked process is in it.
    inhabited = {h["net"] for h in holders if alive(h)} | {everyone[pid] for pid in found}
    networks = inhabited & {h["net"] for h in holders} - {None, namespace_id("self"), namespace_id(1)}
    found |= {pid for pid, network in everyone.items() if network in networks}
    return {pid for pid in found if start_time(pid) is not None}


def kill_members(directory, holders, seconds=10.0):
    """SIGKILL until two polls in turn find nobody: stopped processes die of it too, children born meanwhile are found in the next
    round, and a process in the middle of an exec, which shows no environment for a moment, does not hide from both."""
    end = time.monotonic() + seconds
    killed, empty = set(), 0
    while True:
        left = members(directory, holders)
        if left & ancestors():
            raise LabError("this shell is inside the lab that it wants to take down: leave it first (exit)")
        empty = 0 if left else empty + 1
        if empty == 2:
            return len(killed)
        if time.monotonic() > end:
            raise LabError(f"processes {sorted(left)} do not die; see ps -o pid,stat,wchan -p PID")
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        killed |= left
        for pid in left:  # ours if this very process made the lab; others are init's
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass
        time.sleep(0.02)
