"""Steps of gpu_check.py that train: CPU beside GPU, graphs, resume, ranks that share a GPU."""
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time

from gpu_process import ROOT, equal, held, run, tail

# NCCL takes ranks with different NCCL_HOSTID as ranks of different hosts: they may share a GPU then, and talk over the loopback.
OWN_HOST = 'NCCL_HOSTID=$PMI_RANK NCCL_SOCKET_IFNAME=lo exec "$@"'


class TrainingSteps:
    def command(self, name, device, *more):
        """(run directory, command) of 50 steps of a tiny model."""
        directory = os.path.join("/tmp", f"thinwire-check-{os.getpid()}", name)
        return directory, [self.tool("train"), "--config", "configs/gpt2_tiny.json", f"device={device}", f"run_dir={directory}",
                           f"data_path={self.build}/data/tiny_text_document", "train_iters=50", "eval_iters=0", *more]

    def train(self, name, device, limit, *more, launcher=()):
        directory, command = self.command(name, device, *more)
        return directory, *run([*launcher, *command], limit, self.env())

    @staticmethod
    def losses(directory):
        losses = {}
        with open(os.path.join(directory, "metrics.jsonl")) as file:
            for line in file:
                record = json.loads(line)
                if "loss" in record:
                    losses[record["step"]] = record["loss"]
        return losses

    def trained(self, name, device, limit, *more, **keys):
        directory, code, text, _ = self.train(name, device, limit, *more, **keys)
        if code != 0:
            self.log("train " + name, text)
            raise RuntimeError(f"train {name} on {device}: code {code}: {tail(text, 3)}")
        return self.losses(directory)

    @staticmethod
    def apart(a, b):
        """The largest difference over its tolerance: lambda u sqrt(K S) sqrt(2) step, as in the mesh law (gpt2_tiny: K 256, S 31)."""
        unit = 6.0 * 2.0**-24 * math.sqrt(256 * 31) * math.sqrt(2.0)
        if sorted(a) != sorted(b) or not a or None in (*a.values(), *b.values()):  # None: not finite
            return float("inf")
        return max(abs(a[s] - b[s]) / abs(b[s]) / (unit * s) for s in a)

    def training(self, limit):
        cpu = self.trained("cpu", "cpu", limit / 4, "precision=fp32")
        gpu = self.trained("gpu", "cuda", limit / 4, "precision=fp32")
        again = self.trained("gpu2", "cuda", limit / 4, "precision=fp32")
        ratio = self.apart(gpu, cpu)
        record = {"ratio_to_tolerance": ratio, "same_bits": gpu == again, "losses": {"cpu": cpu, "gpu": gpu}, "ok": ratio <= 1.0 and gpu == again}
        record["summary"] = f"50 steps fp32: {ratio:.2f} of the tolerance from the CPU, repetition {equal(gpu == again)}"
        for precision in ["bfloat16", "fp16"]:
            one = self.trained(precision + "1", "cuda", limit / 8, f"precision={precision}")
            two = self.trained(precision + "2", "cuda", limit / 8, f"precision={precision}")
            record[precision] = {"same_bits": one == two, "last": one[max(one)]}
            record["ok"] = record["ok"] and one == two
            record["summary"] += f"; {precision} {equal(one == two)}, loss {one[max(one)]:.3f} (fp32 {gpu[max(gpu)]:.3f})"
        return record

    def graphs(self, limit):
        """Steps queued as CUDA graphs train to the bits of steps queued op by op; several micro-batches a step."""
        record, bad = {}, []
        cases = [("fp32", ["precision=fp32", "hidden_dropout=0.1", "attention_dropout=0.1"]), ("bfloat16", ["precision=bfloat16"]),
                 ("fp16", ["precision=fp16", "hidden_dropout=0.1"])]
        for name, keys in cases:
            plain = self.trained(name + "-plain", "cuda", limit / 6, *keys)
            directory, code, text, _ = self.train(name + "-graphs", "cuda", limit / 6, "cuda_graphs=true", *keys)
            made = [int(n) for n in re.findall(r"cuda_graphs: [^\n]*: recorded, (\d+) launches", text)]
            same = code == 0 and self.losses(directory) == plain
            record[name] = {"same_bits": same, "launches": made, "code": code}
            if not same or len(made) < 4:
                self.log("graphs " + name, text)
                bad.append(f"{name}: code {code}, {len(made)} of 4 parts recorded, losses {equal(same)}: {tail(text, 2)}")
        return held(record, bad, "bit-equal; " + ", ".join(f"{n} {sum(r['launches'])} launches" for n, r in record.items()))

    def resume(self, limit):
        whole = self.trained("whole", "cuda", limit / 3, "precision=bfloat16")
        directory, command = self.command("cut", "cuda", "precision=bfloat16")
        child = subprocess.Popen(command, cwd=ROOT, env=dict(os.environ, OMP_WAIT_POLICY="passive", **self.env()), stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL, start_new_session=True)
        metrics, end = os.path.join(directory, "metrics.jsonl"), time.time() + limit / 3
        while child.poll() is None and time.time() < end:
            if os.path.exists(metrics) and sum(1 for _ in open(metrics)) >= 8:
                child.send_signal(signal.SIGTERM)
                break
            time.sleep(0.002)
        try:
            code = child.wait(timeout=60)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            raise RuntimeError("the interrupted run does not end")
        at = max(self.losses(directory))
        code2, text, _ = run(command, limit / 3, self.env())
        parts = self.losses(directory)
        ok = code2 == 0 and parts == whole and (code == 75 or at == 50)
        said = f"stopped after step {at} with code {code}, resumed: {equal(parts == whole)}"
        return held({"stopped_at": at}, [] if ok else [said + " " + tail(text, 2)], said)

    def mesh(self, limit):
        """Layouts over threads of one process that share the GPU: fixed ones, then random ones for as long as there is time."""
        start = time.time()
        record = self.gtest(["mesh_smoke_test"], limit, {"THINWIRE_TEST_DEVICE": "cuda"})
        minutes = (limit - (time.time() - start) - 15) / 60
        code, text, _ = run([self.tool("tests/mesh_soak"), "--minutes", f"{max(0.1, minutes):.2f}"], limit, self.env(THINWIRE_TEST_DEVICE="cuda"))
        self.log("mesh_soak", text)
        said = f"{record['summary']}; {tail(text, 1)}"
        return held(record, [record["error"]] * bool(record["error"]) + [f"mesh_soak: code {code}: {tail(text, 3)}"] * (code != 0), said)

    def launcher(self):
        packed = self.deps or self.programs
        return shutil.which("mpiexec.hydra", path=f"{packed}/bin:" + os.environ["PATH"]) if packed else shutil.which("mpiexec")

    def mpi(self, limit):
        """Several processes share the GPU; messages go through the host. Correctness, never speed."""
        launcher = self.launcher()
        if not launcher:
            return {"ok": None, "skipped": "no MPI launcher here"}
        one = self.trained("one", "cuda", limit / 4, "precision=fp32")
        layouts = {}
        for ranks, keys in [(2, []), (2, ["zero_optimization.stage=3"]), (4, ["model_parallel_size=2", "pipe_parallel_size=2"])]:
            name = f"mpi{ranks}" + "".join(re.sub(r"\W", "", k) for k in keys)
            many = self.trained(name, "cuda", limit / 4, "precision=fp32", "train_micro_batch_size_per_gpu=4", *keys,
                                launcher=[launcher, "-launcher", "fork", "-n", str(ranks)])
            layouts[name] = self.apart(many, one)
        worst = max(layouts.values())
        return {"layouts": layouts, "ok": worst <= 1.0, "summary": f"{len(layouts)} layouts, at most {worst:.2f} of the tolerance from one rank"}

    def nccl(self, limit):
        """Two ranks share the GPU over NCCL, each a host of its own to it: the losses of the way through the host, bit for bit. Never speed."""
        launcher = self.launcher()
        if not launcher:
            return {"ok": None, "skipped": "no MPI launcher here"}
        record, bad, end = {}, [], time.time() + limit
        through_host = [launcher, "-launcher", "fork", "-n", "2"]
        cases = [("data parallel", []), ("ZeRO-3", ["zero_optimization.stage=3"]), ("tensor parallel", ["model_parallel_size=2"]),
                 ("pipeline", ["pipe_parallel_size=2"]), ("int8 gradients", ["compression.dp.gradient.codec=block_int"]),
                 ("thinwire", ["compression=thinwire", "zero_optimization.stage=1"])]
        for name, keys in cases:
            if end - time.time() < 10:
                break
            self.so_far("nccl", {"cases": record})
            keys = ["precision=fp32", "train_iters=20", *keys]
            word = re.sub(r"\W", "", name)
            host = self.trained("host" + word, "cuda", end - time.time(), *keys, launcher=through_host)
            directory, code, text, _ = self.train("nccl" + word, "cuda", end - time.time(), *keys, launcher=[*through_host, "sh", "-c", OWN_HOST, "sh"])
            over = re.search(r"ranks talk over [^\n]*", text)
            same = code == 0 and over is not None and self.losses(directory) == host
            record[name] = {"same_bits": same, "code": code, "log": over.group(0) if over else ""}
            if not same:
                self.log("nccl " + name, text)
                bad.append(f"{name}: code {code}, {'over NCCL' if over else 'not over NCCL'}: {tail(text, 2)}")
        return held({"cases": record}, bad, "the bits of messages through the host: " + ", ".join(n for n, r in record.items() if r["same_bits"]))

    def nccl_stopped(self, limit):
        """One of two ranks over NCCL is stopped: the other's watchdog names it and ends the job with 71."""
        launcher = self.launcher()
        if not launcher:
            return {"ok": None, "skipped": "no MPI launcher here"}
        directory, command = self.command("stopped", "cuda", "train_iters=1000000", "watchdog_seconds=5")
        log = os.path.join("/tmp", f"thinwire-check-{os.getpid()}-stopped.log")
        with open(log, "w") as file:
            child = subprocess.Popen([launcher, "-launcher", "fork", "-n", "2", "sh", "-c", OWN_HOST, "sh", *command], cwd=ROOT, stdout=file, stderr=file,
                                     env=dict(os.environ, OMP_WAIT_POLICY="passive", **self.env()), start_new_session=True)
        metrics, end, stopped = os.path.join(directory, "metrics.jsonl"), time.time() + limit, 0.0
        try:
            while child.poll() is None and time.time() < end:
                if not stopped and os.path.exists(metrics) and sum(1 for _ in open(metrics)) >= 8:
                    os.kill(max(self.processes(directory)), signal.SIGSTOP)
                    stopped = time.time()
                time.sleep(0.05)
            seconds = time.time() - stopped
        finally:  # a million steps would go on behind a check that failed
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGKILL)
        with open(log) as file:
            text = file.read()
        self.log("nccl_stopped", text)
        said = re.findall(r"Culprit: [^\n]*|nothing has moved for[^\n]*", text)
        ok = stopped and child.returncode == 71 and said and "ranks talk over NCCL" in text
        why = f"code {child.returncode} {seconds:.1f} s behind the stop: {said[-1] if said else tail(text, 3)}"
        return held({"code": child.returncode, "seconds": seconds}, [] if ok else [why], why)

    @staticmethod
    def processes(directory):
        """The trainers of this run directory."""
        found = []
        for pid in (p for p in os.listdir("/proc") if p.isdigit()):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().split(b"\0")
            except OSError:
                continue
            if words[0].endswith(b"/train") and f"run_dir={directory}".encode() in words:
                found.append(int(pid))
        return found

    def pair_124m(self, limit):
        """GPT-2 124M on two ranks over NCCL that share the GPU, `none` beside `thinwire`: the same data and weights, 30 steps. Never speed."""
        launcher = self.launcher()
        if not launcher:
            return {"ok": None, "skipped": "no MPI launcher here"}
        runs = {}
        for name in ("none", "thinwire"):
            directory = os.path.join("/tmp", f"thinwire-check-{os.getpid()}", "pair_" + name)
            keys = ["device=cuda", "tokenizer=byte", "vocab_size=50257", f"data_path={self.build}/data/tiny_text_document", "split=95,5,0", "train_batch_size=8",
                    "train_iters=30", "lr_warmup_iters=5", "eval_iters=0", "save_interval=0", "save_interval_minutes=0", f"compression={name}", f"run_dir={directory}"]
            code, text, _ = run([launcher, "-launcher", "fork", "-n", "2", "sh", "-c", OWN_HOST, "sh", self.tool("train"), "--config", "configs/gpt2_124m.json", *keys],
                                limit / 2, self.env())
            if code != 0:
                self.log("pair_124m " + name, text)
                raise RuntimeError(f"{name}: code {code}: {tail(text, 3)}")
            runs[name] = {"losses": self.losses(directory), "log": re.findall(r"ranks talk over [^\n]*", text)}
            self.so_far("pair_124m", runs)
        apart = [runs["thinwire"]["losses"][s] / loss - 1 for s, loss in runs["none"]["losses"].items()][-10:]
        last = runs["none"]["losses"][max(runs["none"]["losses"])]
        return dict(runs, summary=f"loss of the last step {last:.3f} without compression; thinwire's of the last ten {100 * min(apart):+.2f} to {100 * max(apart):+.2f} %")
