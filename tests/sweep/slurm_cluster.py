# A Slurm of its own: munged, slurmctld and several slurmd as nodes of one machine, in a folder, on loopback, gone with its owner.
"""with Cluster(nodes) as cluster: cluster.run("squeue") ...

The daemons are children of a keeper process that holds the reading end of a pipe. When the owner closes it, or dies in whatever way,
the keeper ends every process that carries this cluster's SLURM_CONF: daemons, steps, and what jobs have started.
"""
import getpass
import os
import random
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")
START_LIMIT_S = 20
os.environ["PATH"] += ":/usr/sbin:/sbin"


class CannotStart(Exception):
    """Why there is no Slurm here."""


def missing():
    """What is not installed, as text; empty when all is there."""
    return ", ".join(p for p in PROGRAMS if not shutil.which(p))


def free_ports(count):
    """Below those that the system gives to whoever asks for any: mpiexec and ranks beside this test take of them before the daemons have begun."""
    with open("/proc/sys/net/ipv4/ip_local_port_range", encoding="ascii") as f:
        first = int(f.read().split()[0])
    sockets = []
    while len(sockets) < count:
        s = socket.socket()
        try:
            s.bind(("127.0.0.1", random.randrange(first // 2, first) if first > 10000 else 0))
        except OSError:
            s.close()
            continue
        sockets.append(s)
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def configuration(folder, nodes, ports):
    """nodes: {name: (cpus, gpus)}. The text of slurm.conf."""
    host, user = socket.gethostname().split(".")[0], getpass.getuser()
    text = f"""ClusterName=thinwire
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
# A job that is queued again waits until its old credentials have run out, two minutes by default.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0,sched_interval=1
ReturnToService=2
MpiDefault=none
KillWait=4
CompleteWait=0
MinJobAge=300
InactiveLimit=0
GresTypes=gpu
# What is said here counts, not what the machine has: nodes share its cores.
SlurmdParameters=config_overrides
"""
    for (name, (cpus, gpus)), port in zip(nodes.items(), ports[1:]):
        text += f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={cpus} RealMemory=1000 State=UNKNOWN" + (f" Gres=gpu:{gpus}" if gpus else "") + "\n"
    small = ",".join(n for n, (_, gpus) in nodes.items() if not gpus)
    large = ",".join(n for n, (_, gpus) in nodes.items() if gpus)
    text += f"PartitionName=main Nodes={small} Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO\n"
    return text + (f"PartitionName=large Nodes={large} MaxTime=INFINITE State=UP\n" if large else "")


def processes_of(conf):
    """Ids of all processes that carry SLURM_CONF=conf, but this one."""
    mark, found = b"SLURM_CONF=" + conf.encode(), []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as f:
                    if mark in f.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                pass
    return found


def end_all(conf, grace_s=3.0):
    """TERM for a moment, then KILL, until two looks in turn find nothing: a process that just turns into another shows no environment."""
    begin, empty = time.monotonic(), 0
    while empty < 2 and time.monotonic() - begin < grace_s + 10:
        found = processes_of(conf)
        empty = 0 if found else empty + 1
        for pid in found:
            try:
                os.kill(pid, signal.SIGTERM if time.monotonic() - begin < grace_s else signal.SIGKILL)
            except OSError:
                pass
        time.sleep(0.1 if time.monotonic() - begin > grace_s else 0.4)


def keep(folder, names):
    """The keeper: starts the daemons, says so on stdout, waits for the end of stdin, ends them."""
    conf, children = os.path.join(folder, "slurm.conf"), []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    env = dict(os.environ, SLURM_CONF=conf)
    log = open(os.path.join(folder, "daemons.log"), "ab")

    def start(*command):
        children.append(subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
    try:
        start("munged", "--foreground", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key", f"--pid-file={folder}/munged.pid",
              f"--log-file={folder}/munged.log", f"--seed-file={folder}/munge.seed", "--num-threads=4")
        deadline = time.monotonic() + START_LIMIT_S
        while not os.path.exists(f"{folder}/munge.socket") and children[0].poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        start("slurmctld", "-D", "-c", "-f", conf)
        for name in names:
            start("slurmd", "-D", "-N", name, "-f", conf)
        print("started", flush=True)
        while True:
            ready, _, _ = select.select([0], [], [], 0.5)
            if ready and not os.read(0, 1):
                break
            gone = [c.args[0] for c in children if c.poll() is not None]
            if gone:
                print("gone: " + " ".join(gone), flush=True)
                break
    except BrokenPipeError:
        pass
    finally:
        end_all(conf)
        for child in children:
            child.wait()
        for _ in range(50):  # a step that dies may still have put a file into a folder that was just emptied
            shutil.rmtree(folder, ignore_errors=True)
            if not os.path.exists(folder):
                break
            time.sleep(0.1)


class Cluster:
    def __init__(self, nodes):
        self.nodes = nodes
        self.folder = tempfile.mkdtemp(prefix="tw-slurm-")
        self.conf = os.path.join(self.folder, "slurm.conf")
        self.env = dict(os.environ, SLURM_CONF=self.conf)
        # Nothing of a job this test may itself be part of.
        for name in list(self.env):
            if name.startswith(("SLURM_", "SBATCH_", "PMI_")) and name != "SLURM_CONF":
                del self.env[name]

    def __enter__(self):
        for name in ("state", *(f"spool-{n}" for n in self.nodes)):
            os.makedirs(f"{self.folder}/{name}")
        with open(f"{self.folder}/munge.key", "wb") as f:
            os.fchmod(f.fileno(), 0o400)
            f.write(os.urandom(128))
        os.chmod(self.folder, 0o755)  # munge wants no stranger to be able to write on the way to its socket
        with open(self.conf, "w", encoding="ascii") as f:
            f.write(configuration(self.folder, self.nodes, free_ports(1 + len(self.nodes))))
        with open(f"{self.folder}/gres.conf", "w", encoding="ascii") as f:
            for name, (_, gpus) in self.nodes.items():
                if gpus:  # a file that exists is enough, since nothing confines jobs to devices here
                    f.write(f"NodeName={name} Name=gpu File={self.folder}/gpu[0-{gpus - 1}]\n")
                    for i in range(gpus):
                        with open(f"{self.folder}/gpu{i}", "wb"):
                            pass
        self.keeper = subprocess.Popen([sys.executable, os.path.abspath(__file__), self.folder, *self.nodes], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, start_new_session=True)
        deadline, said = time.monotonic() + START_LIMIT_S, ""
        while time.monotonic() < deadline:
            said = self.run("sinfo", "-h", "-N", "-o", "%N %t", check=False)
            if said.count(" idle") == len(self.nodes):
                return self
            time.sleep(0.1)
        logs = self.logs()
        self.__exit__()
        raise CannotStart(f"the nodes did not come up in {START_LIMIT_S} s: {said.strip()}\n{logs}")

    def __exit__(self, *_):
        self.keeper.stdin.close()
        self.keeper.wait(30)
        self.keeper.stdout.close()

    def run(self, *command, check=True, env=None, cwd=None):
        """Standard output and error of a command that speaks to this cluster."""
        done = subprocess.run([str(c) for c in command], env={**self.env, **(env or {})}, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, check=False, timeout=60)
        text = done.stdout.decode(errors="replace")
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, command))}: code {done.returncode}\n{text}")
        return text

    def logs(self):
        text = ""
        for name in sorted(os.listdir(self.folder)):
            if name.endswith(".log"):
                with open(os.path.join(self.folder, name), encoding="utf-8", errors="replace") as f:
                    text += f"--- {name}\n" + "".join(f.readlines()[-15:])
        return text

    def job(self, id_):
        """{key: value} of `scontrol show job`."""
        return dict(w.split("=", 1) for w in self.run("scontrol", "show", "-o", "job", id_).split() if "=" in w)


if __name__ == "__main__":
    keep(sys.argv[1], sys.argv[2:])
