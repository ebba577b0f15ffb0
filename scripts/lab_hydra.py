"""mpirun in the emulated cluster: MPICH's Hydra runs on the head, and starts its proxies on the hosts through `lab` in place of ssh."""
import os
import shutil
import subprocess

from lab_namespaces import LabError, MARK
from lab_network import HEAD_ADDRESS


def distribute(ranks, hosts, per_host=None):
    """Ranks of every host, in blocks: as even as possible, the first hosts taking one more, or `per_host` each until none is left."""
    if ranks < 1:
        raise LabError("-n: at least one rank")
    if per_host is not None:
        if per_host < 1 or ranks > per_host * hosts:
            raise LabError(f"-ppn {per_host}: {hosts} hosts take {max(per_host, 0) * hosts} ranks, not {ranks}")
        return [min(per_host, max(0, ranks - i * per_host)) for i in range(hosts)]
    return [ranks // hosts + (1 if i < ranks % hosts else 0) for i in range(hosts)]


def environment(directory, shared_memory, delay_us=0):
    """For all ranks: TCP over eth0, and between ranks of one host too unless shared memory is allowed there.

    MPICH leaves shared memory to UCX, whose `posix` tells hosts apart by their IPC namespace. `cma` must stay out: it copies between
    processes by number, and would do so between hosts, since they share the numbering.
    """
    env = dict(os.environ)
    env[MARK] = directory
    env["UCX_TLS"] = "tcp,self,posix" if shared_memory else "tcp,self"
    env["THINWIRE_NODE_MEMORY"] = "1" if shared_memory else "0"  # Thinwire's own
    if delay_us:
        env["THINWIRE_DELAY_US"] = str(delay_us)  # likewise
    env["UCX_NET_DEVICES"] = "eth0"
    env["GLOO_SOCKET_IFNAME"] = "eth0"
    env["NCCL_SOCKET_IFNAME"] = "eth0"
    return env


def find_hydra():
    for name in ("mpiexec.hydra", "mpirun", "mpiexec"):
        path = shutil.which(name)
        if path and "HYDRA" in subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout:
            return path
    raise LabError("no MPICH launcher (Hydra) found; install package mpich")


def command_line(lab_script, hosts, options, command):
    """hosts: names. The whole mpirun command."""
    counts = distribute(options.n, len(hosts), options.ppn)
    line = [find_hydra(), "-launcher", "ssh", "-launcher-exec", lab_script, "-rmk", "user", "-localhost", HEAD_ADDRESS,
            "-hosts", ",".join(f"{h}:{c}" for h, c in zip(hosts, counts) if c > 0), "-n", str(options.n)]
    if options.label:
        line.append("-prepend-rank")
    if options.bind:
        line += [lab_script, "_pin"]
    return line + command


def remote_command(arguments):
    """What ssh would be given: [options] HOST WORD..., the words being a line of shell. Returns (host, line)."""
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        rest.pop(0)
    if len(rest) < 2:
        raise LabError(f"launched without a host and a command: {arguments}")
    return rest[0], " ".join(rest[1:])


def pin():
    """Binds this process to the core of its rank: core number rank modulo cores, among those allowed here."""
    rank = int(os.environ.get("PMI_RANK", "0"))
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[rank % len(cores)]})
