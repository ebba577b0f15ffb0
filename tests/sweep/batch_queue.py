# Runs jobs that the stand-ins of LSF, PBS and Flux have accepted, with the surroundings and the signals that the real ones give.
import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
STAND_INS = HERE / "stand_ins"
SCRIPTS = HERE.parents[1] / "scripts"
ALL = sorted(p.relative_to(SCRIPTS) for system in ("slurm", "lsf", "pbs", "flux") for p in (SCRIPTS / system).glob("*.sh"))
sys.path.insert(0, str(STAND_INS))
import stand_in_support  # noqa: E402


class Queue:
    """folder: where the stand-ins store jobs. nodes, node ("cores:gpus"): what an allocation has."""

    def __init__(self, folder, nodes=1, node="42:6"):
        self.folder, self.nodes, self.node = Path(folder), nodes, node
        os.environ["STAND_IN_DIR"] = str(folder)

    def environment(self, **extra):
        """Of a person in front of that batch system."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "LSB_", "LS_", "PBS_", "FLUX_", "THINWIRE_", "PMI_"))}
        env.update({"PATH": f"{STAND_INS}:{env['PATH']}", "STAND_IN_DIR": str(self.folder), "STAND_IN_NODES": str(self.nodes), "STAND_IN_NODE": self.node, **extra})
        env.pop("STAND_IN_FLUX_JOB", None)
        return env

    def jobs(self):
        return stand_in_support.jobs()

    def output(self, job):
        path = self.folder / f"{job['number']}{'' if job['index'] is None else '-%d' % job['index']}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def all_output(self):
        return "".join(f"--- job {j['number']} {j['index']}\n{self.output(j)}" for j in self.jobs().values())

    def ready(self, job, jobs):
        waits_for = re.findall(r"ended\((\d+)\)", job["options"].get("-w", "")) if job["system"] == "lsf" else []
        return job["state"] == "pending" and all(j["state"] in ("done", "killed") for j in jobs.values() if str(j["number"]) in waits_for)

    def drain(self, warn=None, limit=120):
        """Runs what is ready, one job after the other, until nothing is. warn(job, seconds): whether its warning is due; once per start.
        Returns how many starts there were."""
        starts, deadline = 0, time.monotonic() + limit
        while True:
            jobs = self.jobs()
            name = next((n for n, j in jobs.items() if self.ready(j, jobs)), None)
            if name is None:
                return starts
            assert starts < 30 and time.monotonic() < deadline, "the jobs never end:\n" + self.all_output()
            starts += 1
            self.run(name, warn, deadline)

    def run(self, name, warn, deadline):
        job = {**self.jobs()[name], "state": "running"}
        job["runs"] += 1
        stand_in_support.save(name, job)
        ranks = self.folder / "ranks.pid"
        env, cwd, words = self.surroundings(job)
        env["STAND_IN_RANKS"] = str(ranks)
        out = self.folder / f"{job['number']}{'' if job['index'] is None else '-%d' % job['index']}.out"
        with open(out, "ab") as log:
            process = subprocess.Popen(["bash", job["script"], *words], cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)
        begin, warned, killed = time.monotonic(), False, False
        while process.poll() is None:
            if warn and not warned and warn(job, time.monotonic() - begin):
                self.warn(job, process, ranks)
                warned = True
            if not killed and self.jobs()[name].get("kill"):
                os.killpg(process.pid, signal.SIGTERM)
                killed = True
            if time.monotonic() > deadline:
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.01)
        code = 128 - process.returncode if process.returncode < 0 else process.returncode
        again = job["system"] == "lsf" and not killed and str(code) in job["options"].get("-Q", "").split()
        stand_in_support.save(name, {**self.jobs()[name], "state": "pending" if again else "killed" if killed else "done", "code": code})

    def surroundings(self, job):
        system, env = job["system"], dict(job["env"])
        nodes = [f"node{i}" for i in range(self.nodes)]
        if system == "lsf":
            slots = int(job["options"].get("-n", "1").split(",")[0])
            hosts = self.folder / "hosts"
            # With jsrun the launch node comes first; without it every slot is a line.
            hosts.write_text("\n".join(["launch"] + [n for n in nodes for _ in range(2)] if "-nnodes" in job["options"] else [nodes[i % len(nodes)] for i in range(slots)]) + "\n")
            env.update({"LSB_JOBID": str(job["number"]), "LSB_JOBINDEX": str(job["index"] or 0), "LSB_DJOB_NUMPROC": str(slots), "LSB_DJOB_HOSTFILE": str(hosts), "LS_SUBCWD": job["cwd"],
                        "LSB_JOBNAME": job["name"]})
            return env, job["cwd"], []
        if system == "pbs":
            hosts = self.folder / "hosts"
            hosts.write_text("".join(f"{nodes[i % len(nodes)]}\n" for i in range(job["slots"])))
            id_ = f"{job['number']}" + (f"[{job['index']}]" if job["index"] is not None else "") + ".stand-in"
            clean = {"HOME": "/", "PATH": self.environment()["PATH"], "STAND_IN_DIR": str(self.folder), "STAND_IN_NODES": str(self.nodes), "STAND_IN_NODE": self.node, "LC_ALL": "C"}
            clean.update({"PBS_JOBID": id_, "PBS_O_WORKDIR": job["cwd"], "PBS_NODEFILE": str(hosts), "PBS_JOBNAME": job["name"], **env})
            if job["index"] is not None:
                clean["PBS_ARRAY_INDEX"] = str(job["index"])
            return clean, "/", []  # PBS begins in the home directory, and with nothing but what -v names
        env["STAND_IN_FLUX_JOB"] = f"f{job['number']}Aa"
        return env, job["cwd"], job["arguments"]

    shell_alone = False  # whether a warning reaches the script and nobody else, as some sites have it

    def warn(self, job, process, ranks):
        if self.shell_alone:
            os.kill(process.pid, signal.SIGUSR1)
        elif job["system"] == "lsf":
            os.killpg(process.pid, signal.SIGUSR1)  # the shell and the launcher at once
        elif job["system"] == "flux":
            pids = [process.pid, int(ranks.read_text())]  # the script, and the ranks by their shells
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # the script has handed it on, and they are gone
                    os.kill(pid, signal.SIGUSR1)

    def start(self, **options):
        thread = threading.Thread(target=self.drain, kwargs=options, daemon=True)
        thread.start()
        return thread
