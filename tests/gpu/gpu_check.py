#!/usr/bin/env python3
"""The steps of gpu_check.sh: each adds to one JSON and one page as it ends, so that a run that is cut off still says something.

Children run in process groups of their own under a time limit, and only those are ever ended. The GPU's settings are left alone.
"""
import argparse
import concurrent.futures
import glob
import hashlib
import json
import os
import re
import shutil
import site
import statistics
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gpu_check_training import TrainingSteps
from gpu_process import ROOT, equal, held, json_lines, run, tail
from measured import table

# How PyTorch's step is made (tests/peers/gpu_peer.py); its own recomputation is that of ours, shape by shape.
PEER_SETTINGS = "torch.compile by blocks and of the whole model, in default mode and max-autotune, as far as there was time, fused AdamW, fp32 master weights (autocast to bf16), clipping, the faster of cuDNN and flash attention"
DENSE_BF16_TFLOPS = {"H100": 989.4, "H200": 989.4, "A100": 312.0, "B200": 2250.0}


def python_library_folders():
    """Folders of the CUDA libraries that Python packages bring: cuBLASLt, cuDNN, NVRTC where the toolkit has none."""
    places = site.getsitepackages() + [os.path.join(sys.prefix, "lib", f"python3.{sys.version_info.minor}", "site-packages")]
    return [[folder for place in dict.fromkeys(places) for folder in sorted(glob.glob(os.path.join(place, "nvidia", "*", kind)))] for kind in ("lib", "include")]


class Check(TrainingSteps):
    def __init__(self, options):
        self.options = options
        self.started = time.time()
        self.out = os.path.abspath(options.out)
        os.makedirs(self.out, exist_ok=True)
        self.build = os.path.abspath(options.build)
        self.deps = self.programs = None
        self.vectors = os.environ.get("THINWIRE_VECTORS", os.path.join(ROOT, "../shared/vectors"))
        self.result = {"mode": options.mode, "started": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()), "steps": {}}
        self.page = []
        self.copy_gbs = self.product_gflops = 0.0

    # ---- bookkeeping

    def left(self):
        return self.options.minutes * 60 - (time.time() - self.started)

    def tool(self, name):
        return os.path.join(self.build, name)

    def env(self, **more):
        folders = [os.path.join(self.deps, "usr/lib/x86_64-linux-gnu")] if self.deps else []
        folders += [os.path.join(self.programs, "lib")] if self.programs else []
        path = ":".join(folders + python_library_folders()[0] + [os.environ.get("LD_LIBRARY_PATH", "")]).strip(":")
        return dict({"LD_LIBRARY_PATH": path}, **more)

    def so_far(self, name, record):
        """What a step under way has found, for a reader of a run that is cut off."""
        self.result["steps"][name] = dict(record, ok=None, skipped="under way")
        self.write()

    def step(self, name, body, limit):
        if self.options.only and name not in self.options.only and name not in ("device", "unpack"):
            return
        if self.left() < 15:
            self.result["steps"][name] = {"ok": None, "skipped": "no time left"}
            self.write()
            return
        start = time.time()
        try:
            record = body(min(limit, self.left())) or {}
        except Exception as error:  # a step that breaks is a finding, and the others still run
            record = dict(self.result["steps"].get(name, {}), ok=False, error=f"{type(error).__name__}: {error}")
            record.pop("skipped", None)
        record.setdefault("ok", True)
        if record["ok"] is False:
            record["error"] = record.get("error") or record.get("summary", "")
        record["seconds"] = round(time.time() - start, 1)
        self.result["steps"][name] = record
        word = {True: "ok", False: "FAILED", None: "skipped"}[record["ok"]]
        print(f"gpu_check: {name}: {word} ({record['seconds']} s)" + (f": {record['error']}" if record.get("error") else ""))
        self.write()

    def write(self):
        self.result["seconds"] = round(time.time() - self.started, 1)
        path = os.path.join(self.out, "gpu_check.json")
        with open(path + ".new", "w") as file:
            json.dump(self.result, file, indent=1)
        os.replace(path + ".new", path)
        lines = [f"# gpu_check {self.options.mode}, {self.result['started']}", ""]
        device = self.result["steps"].get("device", {})
        lines += [f"Device: {device.get('gpu', 'unknown')}; driver {device.get('driver', '?')}; {device.get('nvcc', '')}", ""]
        words, rows = {True: "ok", False: "**failed**", None: "skipped"}, []
        for name, record in self.result["steps"].items():
            what = str(record.get("error") or record.get("skipped") or record.get("summary", "")).replace("|", "/")
            rows.append([name, words[record["ok"]], record.get("seconds", ""), what[:300]])
        lines.append(table(["step", "result", "seconds", "what"], rows))
        lines += self.page
        with open(os.path.join(self.out, "gpu_check.md"), "w") as file:
            file.write("\n".join(lines) + "\n")

    def log(self, name, text):
        """Long outputs, joined into one file: few files come back from such machines."""
        with open(os.path.join(self.out, "gpu_check.log"), "a") as file:
            file.write(f"==== {name}\n{text[-200000:]}\n")

    # ---- steps

    def device(self, limit):
        query = "name,memory.total,memory.free,driver_version,compute_cap,clocks.sm,clocks.mem"
        code, text, _ = run(["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader"], 30)
        if code != 0 or not text.strip():
            raise RuntimeError("nvidia-smi finds no GPU: " + tail(text, 2))
        fields = [f.strip() for f in text.splitlines()[0].split(",")]
        nvcc = self.nvcc()
        version = run([nvcc, "--version"], 30)[1] if nvcc else "no nvcc"
        found = re.search(r"release ([\d.]+)", version)
        return {"gpu": fields[0], "memory_mib": int(fields[1].split()[0]), "free_mib": int(fields[2].split()[0]), "driver": fields[3],
                "capability": fields[4], "clocks": fields[5:], "nvcc": "CUDA " + (found.group(1) if found else "?"),
                "summary": text.strip()}

    @staticmethod
    def nvcc():
        for candidate in [shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"]:
            if candidate and os.path.exists(candidate):
                return candidate
        return None

    def unpack(self, limit):
        """Into /tmp by content, once per machine."""
        packs = {name: os.path.join(self.options.packs, name + ".tar.xz") for name in ("deps", "programs", "vectors")}
        record = {"summary": ""}
        for name, path in packs.items():
            if not os.path.exists(path):
                record["summary"] += f"no {name} pack; "
                continue
            with open(path, "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()[:16]
            target = f"/tmp/thinwire-{name}-{digest}"
            if not os.path.exists(target + "/.done"):
                os.makedirs(target, exist_ok=True)
                code, text, _ = run(["tar", "-C", target, "-xf", path], limit)
                if code != 0:
                    raise RuntimeError(f"{name}: {tail(text, 3)}")
                open(target + "/.done", "w").close()
            setattr(self, name, f"{target}/{name}")
            record["summary"] += f"{name} in {target}; "
        if self.programs:
            self.build = self.programs
        return record

    def targets(self):
        mode = self.options.mode
        if mode in ("speed", "large", "long"):
            return ["bench"]
        if mode == "first":
            return ["bench", "reference_check", "matmul_cuda_test", "attention_fused_cuda_test"]
        if mode == "sanitize":
            return self.cuda_tests()
        return ["train", "reference_check", "bench", "tiny_data", "mesh_smoke_test", "mesh_soak"] + self.cuda_tests()

    def make(self, limit):
        """What the steps need, here; or only a look at programs that were brought along."""
        if self.programs:
            return dict(self.has_attention(), summary="brought along")
        start = time.time()
        capability = self.result["steps"].get("device", {}).get("capability", "9.0").replace(".", "")
        architecture = {"90": "90a-real"}.get(capability, capability + "-real")
        libraries, includes = python_library_folders()
        command = ["cmake", "-S", ROOT, "-B", self.build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DTHINWIRE_CUDA=ON", "-DTHINWIRE_WERROR=OFF",
                   f"-DTHINWIRE_CUDA_ARCHITECTURES={architecture}", f"-DTHINWIRE_CUDA_LIBS={';'.join(libraries)}",
                   f"-DTHINWIRE_CUDA_INCLUDES={';'.join(includes)}", f"-DCMAKE_CUDA_COMPILER={self.nvcc()}"]
        env = self.env()
        if self.deps:
            command += [f"-DCMAKE_PREFIX_PATH={self.deps}/usr", f"-DONEDNN_ROOT={self.deps}/usr",
                        f"-DCUDNN_FRONTEND_INCLUDE_DIR={self.deps}/cudnn-frontend/include", f"-DMPI_CXX_COMPILER={self.deps}/bin/mpicxx"]
            env["PATH"] = f"{self.deps}/bin:" + os.environ["PATH"]
            env["CPATH"] = f"{self.deps}/usr/include:{self.deps}/usr/include/x86_64-linux-gnu"
            env["LIBRARY_PATH"] = f"{self.deps}/usr/lib/x86_64-linux-gnu"
        code, text, _ = run(command, limit, env)
        self.log("cmake", text)
        if code != 0:
            raise RuntimeError("cmake: " + tail("\n".join(l for l in text.splitlines() if "rror" in l) or text, 6))
        off = re.search(r"Fused attention: OFF.*", text)
        if off:
            raise RuntimeError(f"{off.group(0)}; nothing was built")
        code, text, _ = run(["ninja", "-C", self.build] + self.targets(), limit - (time.time() - start), env)
        self.log("ninja", text)
        self.warnings = [l for l in text.splitlines() if "warning" in l][:20]
        if code != 0:
            why = f"not built within {limit:.0f} s: " if code == 124 else ""
            raise RuntimeError("ninja: " + why + tail("\n".join(l for l in text.splitlines() if "error" in l) or text, 6))
        return dict(self.has_attention(), compiler_warnings=self.warnings, summary=f"{architecture}, cuDNN attention")

    def has_attention(self):
        if self.options.mode == "sanitize":
            return {}
        code, text, _ = run([self.tool("bench"), "--version"], 30, self.env())
        if code != 0 or "cuDNN attention" not in text:
            raise RuntimeError(f"bench --version: code {code}: {tail(text, 3)}: no cuDNN attention in it")
        return {"version": text}

    @staticmethod
    def fused(**more):
        """The environment of what has to run on cuDNN's attention: a plan that fails is an error then, not a slower kernel."""
        return dict({"THINWIRE_ATTENTION": "fused"}, **more)

    @staticmethod
    def plans(text):
        """What the log says of attention plans: name, ms to build, bytes of workspace and as priced; and what fell back."""
        made = re.findall(r"(attention of length [^\n]*?): plan in ([\d.]+) ms, workspace (\d+) bytes, priced at (\d+)", text)
        own = re.findall(r"attention[^\n]* runs on our own kernels[^\n]*", text)
        return {"plans": [{"call": c, "ms": float(ms), "workspace": int(w), "priced": int(p)} for c, ms, w, p in made], "fell_back": own}

    def bench(self, limit, *words):
        """(JSON lines, all that was said) of a `bench` that has to hold."""
        code, text, _ = run([self.tool("bench"), *words, "--json"], limit, self.env(**self.fused()))
        lines = json_lines(text)
        if code != 0 or not lines:
            raise RuntimeError(f"bench {' '.join(words)}: code {code}: {tail(text, 3)}")
        return lines, text

    def ceilings(self, limit):
        """What the machine gives at most: a device copy, a large product on random numbers, attention of the 1B shape alone."""
        record = {}
        for name, what in [("copy/llama_1b_b8", "copy"), ("matmul/8192", "product"), ("attention_forward/llama_1b_b8", "attention_forward"),
                           ("attention_backward/llama_1b_b8", "attention_backward")]:
            record[what] = self.bench(limit / 4, "op", name, "--device", "cuda")[0][0]
        self.copy_gbs = record["copy"]["gbytes_per_s"]
        self.product_gflops = record["product"]["gflops"]
        record["summary"] = f"copy {self.copy_gbs:.0f} GB/s, 8192^3 bf16 {self.product_gflops / 1e3:.0f} TFLOP/s"
        return record

    def gtest(self, names, limit, env=None, wrap=(), arguments=()):
        """The programs beside each other, but one at a time under a checker. PROGRAM:SUITE.TEST is one test of it."""
        record, failed = {"tests": {}}, []
        end = time.time() + limit
        commands = self.test_commands()

        def one(name):
            name, _, test = name.partition(":")
            command = commands.get(name, [""])  # a program may hold several tests, each with arguments of its own
            if not os.path.exists(command[0]):
                return {"ok": False, "why": "not built"}
            if time.time() > end - 5:
                return {"ok": None, "skipped": "no time left"}
            code, text, seconds = run(list(wrap) + command + ["--gtest_brief=1", *arguments, *[f"--gtest_filter={test}"] * bool(test)], end - time.time(), self.env(**(env or {})))
            passed, skipped = re.search(r"\[  PASSED  \] (\d+)", text), re.search(r"\[  SKIPPED \] (\d+)", text)
            entry = {"ok": code == 0, "code": code, "seconds": seconds, "passed": int(passed.group(1)) if passed else 0,
                     "skipped": int(skipped.group(1)) if skipped else 0}
            if code != 0:
                entry.update(why="time" if code == 124 else str(code), tail=tail(text, 40))
                self.log(" ".join(wrap) + " " + name, text)
            elif entry["passed"] == 0:
                entry.update(ok=False, why=f"nothing passed, {entry['skipped']} skipped", tail=tail(text, 10))
            return entry

        with concurrent.futures.ThreadPoolExecutor(1 if wrap else 4) as pool:
            for name, entry in zip(names, pool.map(one, names)):
                record["tests"][name] = entry
                if entry["ok"] is False:
                    failed.append(f"{name} ({entry['why']})")
        total = sum(t.get("passed", 0) for t in record["tests"].values())
        return held(record, failed, f"{total} tests in {len({n.partition(':')[0] for n in record['tests']})} programs passed")

    def tests_within(self, name):
        """[PROGRAM:SUITE.TEST], or the program alone where it lists none."""
        code, text, _ = run(self.test_commands().get(name, [""]) + ["--gtest_list_tests"], 30, self.env())
        found, suite = [], ""
        for line in text.splitlines() if code == 0 else []:
            if re.match(r"\S+\.$", line):
                suite = line
            elif suite and line.startswith("  "):
                found.append(f"{name}:{suite}{line.split()[0]}")
        return found or [name]

    def test_commands(self):
        """Of the configured build, by name."""
        if self.programs:
            with open(os.path.join(self.programs, "tests.json")) as file:
                return {name: [self.tool(command[0])] + command[1:] for name, command in json.load(file).items()}
        code, text, _ = run(["ctest", "--test-dir", self.build, "--show-only=json-v1"], 60)
        if code != 0:
            raise RuntimeError(f"ctest lists no tests: {tail(text, 2)}")
        # A program that is not built yet has its name alone.
        return {t["name"]: t.get("command", [""]) for t in json.loads(text[text.index("{"):])["tests"]}

    def cuda_tests(self):
        tests = [t for t in self.test_commands() if "cuda" in t and t.endswith("_test")]
        return sorted(tests, key=lambda n: ("attention" in n, n))  # the slow ones last

    def ops(self, limit):
        return self.gtest(self.cuda_tests(), limit)

    def products(self, limit):
        """Every kind of product against a loop, and the products of a 1B step by the ceiling of an 8192^3 one."""
        record = self.gtest(["matmul_cuda_test"], limit / 2)
        self.so_far("products", record)
        lines, _ = self.bench(limit / 2, "op", "matmul/llama_1b_b8", "--device", "cuda")
        record["lines"] = lines
        share = [f"{l['op']} {100 * l['gflops'] / self.product_gflops:.0f} %" for l in lines if self.product_gflops and l["gflops"]]
        record["summary"] += "; of the 8192^3 product: " + ", ".join(share)
        return record

    def attention(self, limit):
        """The library's attention against the float64 oracle, repeated; the device's properties as it names them."""
        properties = os.path.join(self.out, "device_properties.json")
        record = self.gtest(self.tests_within("attention_fused_cuda_test"), limit, self.fused(THINWIRE_DEVICE_JSON=properties))
        if os.path.exists(properties):
            record["summary"] += "; properties saved"
        return record

    def reference(self, limit):
        """One model of each family in bf16, then fp32, with equal bits at every run asked for and not."""
        families = [os.path.join(self.vectors, "models", f) for f in ("gpt2", "llama", "neox")]
        wish = self.fused()
        if not all(os.path.isdir(f) for f in families):  # those of the tree, whose head sizes may be none of cuDNN's
            families = [os.path.join(ROOT, "tests/golden/models", f) for f in ("gpt2_tanh_tied", "llama_gqa", "neox_parallel")]
            wish = {}
        record, bad, end = {"models": families}, [], time.time() + limit
        for precision in ("bfloat16", "fp32"):
            for deterministic in ("true", "false"):
                name = f"{precision}, deterministic {deterministic}"
                command = [self.tool("reference_check"), *families, "device=cuda", f"precision={precision}", f"deterministic={deterministic}"]
                code, text, seconds = run(command, end - time.time(), self.env(**(wish if precision != "fp32" else {})))
                lines = [l for l in text.splitlines() if l.endswith(" ok") or l.endswith(" FAIL")]
                fails = [l for l in lines if l.endswith(" FAIL")]
                record[name] = {"code": code, "seconds": seconds, "quantities": len(lines), "failed": fails[:20], **self.plans(text)}
                self.log("reference_check " + name, text)
                if code != 0 or not lines:
                    bad.append(f"{name}: code {code}, {len(fails)} of {len(lines)} quantities: {fails[0] if fails else tail(text, 2)}")
                self.so_far("reference", record)
        return held(record, bad, ", ".join(f"{p}: {r['quantities']} quantities" for p, r in record.items() if p != "models"))

    def step_1b(self, limit):
        """The step of a 1B Llama, with equal bits asked for and not; then where its time goes."""
        record, bad, said, end = {}, [], [], time.time() + limit
        for profile in ([], ["--profile"]):
            for deterministic in ("true", "false"):
                name = f"deterministic {deterministic}" + (", every op waited for" if profile else "")
                try:
                    lines, text = self.bench(end - time.time(), "step", "llama3_1b", "device=cuda", "precision=bfloat16",
                                             f"deterministic={deterministic}", f"train_iters={3 if profile else 8}", *profile)
                except RuntimeError as error:
                    bad.append(f"{name}: {error}")
                    continue
                line = record[name] = dict(lines[-1], **self.plans(text))
                said.append(f"{name}: {line['step_ms']:.1f} ms, {line['model_tflops_per_rank']:.0f} TFLOP/s")
                if profile:
                    self.profile_table(f"Where the time goes (llama3_1b, {name})", line)
                self.so_far("step_1b", dict(record, summary="; ".join(said)))
        return held(record, bad, "; ".join(said))

    def profile_table(self, title, line):
        ops = sorted(line.get("ops", {}).items(), key=lambda item: -item[1]["ms"])
        rows = [[name, f"{o['ms']:.2f}", f"{100 * o['share']:.1f} %", o["calls"], f"{o.get('gflops', 0) / 1e3:.0f}"] for name, o in ops]
        self.page += [f"## {title}", "", table(["op", "ms", "share", "calls", "TFLOP/s"], rows)]

    # ---- speed

    def bench_op(self, limit):
        return self.op_table("Ops", ("_b32", "_b8"), limit)

    def coders(self, limit):
        """A full gradient of a 1B model packed, and one rank's slice of it absorbed."""
        return self.op_table("Codecs", ("pack/1b/", "absorb/1b/"), limit)

    def op_table(self, title, names, limit):
        lines, code, text = [], 0, ""
        for name in names:
            one, text, _ = run([self.tool("bench"), "op", name, "--device", "cuda", "--json"], limit / len(names), self.env())
            lines += json_lines(text)
            code = code or one
        rows, slow = [], []
        for l in lines:
            share = l["gbytes_per_s"] / self.copy_gbs if self.copy_gbs else 0.0
            rate = l["gflops"] / self.product_gflops if self.product_gflops else 0.0
            rows.append([l["op"], l["dtype"], f"{l['ms']:.4f}", f"{l['gbytes_per_s']:.0f}", f"{100 * share:.0f} %", f"{l['gflops'] / 1e3:.1f}", f"{100 * rate:.0f} %",
                         f"{l['rel_error']:.1e} / {l['tolerance']:.1e}{'' if l['ok'] else ' **FAIL**'}"])
            if l["gflops"] == 0 and share < 0.8:
                slow.append(f"{l['op']} {100 * share:.0f} %")
        self.page += [f"## {title}", "", f"Copy {self.copy_gbs:.0f} GB/s (bytes read and written), 8192^3 bf16 product {self.product_gflops / 1e3:.0f} TFLOP/s.", "",
                      table(["op", "dtype", "ms", "GB/s", "of copy", "TFLOP/s", "of product", "error / tolerance"], rows)]
        return held({"lines": lines, "below_80_percent_of_copy": slow}, [f"code {code}: {tail(text, 3)}"] if code or not lines else [],
                    f"{len(lines)} cases; below 80 % of copy speed: {', '.join(slow) or 'none'}")

    def steps(self, limit):
        """Ours beside PyTorch's, in turns: ours, theirs, ours, theirs."""
        device = self.result["steps"].get("device", {})
        gib = device.get("memory_mib", 0) / 1024
        peak = next((v for k, v in DENSE_BF16_TFLOPS.items() if k in device.get("gpu", "")), 0.0)
        # Ours and PyTorch's recompute the same: nothing, what is cheap between products, whole blocks.
        shapes = {"speed": [("llama3_1b", "none", [], 60), ("124m", "none", ["train_micro_batch_size_per_gpu=32"], 0)],
                  "large": [("llama3_3b", "selective", ["recompute_granularity=selective"], 72),
                            ("llama2_7b", "full", ["checkpoint_activations=true"], 130)]}[self.options.mode]
        rows, failures, record, end = [], [], {}, time.time() + limit
        for shape, recompute, keys, needs in shapes:
            if gib and gib < needs:
                record[shape] = {"skipped": f"needs {needs} GiB, the GPU has {gib:.0f}"}
                rows.append([shape, f"skipped: {record[shape]['skipped']}", *[""] * 5])
                continue
            entry = {"ours": [], "ours, product_table": [], "ours, deterministic false": [], "pytorch": [], "ways": [], "recompute": recompute}
            record[shape] = entry
            ours = [self.tool("bench"), "step", shape, "device=cuda", "precision=bfloat16", "train_iters=10", "--json"] + keys
            tabled = ours + [f"product_table={self.out}/products.json"]
            for who, command in [("ours", ours), ("ours, product_table", tabled), ("pytorch", None), ("ours, deterministic false", ours + ["deterministic=false"]),
                                 ("ours", ours), ("ours, product_table", tabled), ("pytorch", None)]:
                if end - time.time() < 20:
                    break
                if command is None:
                    batch = {"124m": 32, "llama3_1b": 8}.get(shape, 4)
                    command = [sys.executable, os.path.join(ROOT, "tests/peers/gpu_peer.py"), shape, "--batch", str(batch), "--recompute", recompute]
                    if self.options.mode == "large":  # the whole model compiles for minutes
                        command += ["--ways", "blocks:default,blocks:max-autotune-no-cudagraphs"]
                code, text, _ = run(command, min(140, end - time.time()), self.env(**self.fused()) if who != "pytorch" else None)
                lines = [l for l in json_lines(text) if "tokens_per_s" in l]  # (PyTorch's autotuning prints others)
                if lines and (code == 0 or who == "pytorch"):  # PyTorch's lines come one by one, as its kinds of attention end
                    entry[who].append(max(lines, key=lambda l: l["tokens_per_s"]))
                    entry["ways"] += lines if who == "pytorch" else []
                    if who != "pytorch":
                        entry[who][-1].update(self.plans(text))
                else:
                    entry.setdefault("failures", []).append(f"{who}: code {code}: {tail(text, 3)}")
                    self.log(f"{shape} {who}", text)
                    if who != "pytorch":
                        failures.append(f"{shape} {who}: code {code}")
                self.so_far("steps", record)
            flops_per_token = 0.0
            for who in ("ours", "ours, product_table", "ours, deterministic false", "pytorch"):
                if not entry[who]:
                    continue
                best = max(entry[who], key=lambda l: l["tokens_per_s"])
                if who == "ours":
                    flops_per_token = best["model_tflops_per_rank"] * 1e12 / best["tokens_per_s"]
                tflops = best["tokens_per_s"] * flops_per_token / 1e12
                mfu = f"{100 * tflops / peak:.1f} %" if peak else "?"
                rows.append([shape, who, f"{best['tokens_per_s']:.0f}", f"{best['step_ms']:.1f}", f"{tflops:.0f}", mfu, f"{best.get('memory_peak_bytes', 0) / 2**30:.1f}"])
            theirs = [l["tokens_per_s"] for l in entry["pytorch"]]
            for who in ("ours", "ours, product_table", "ours, deterministic false"):
                speeds = [l["tokens_per_s"] for l in entry[who]]
                if speeds and theirs:
                    entry["ratio"] = [statistics.median(speeds) / statistics.median(theirs), min(speeds) / max(theirs), max(speeds) / min(theirs)]
                    rows.append([shape, f"{who}, over PyTorch", "{:.3f}x ({:.3f} to {:.3f})".format(*entry["ratio"]), *[""] * 4])
        self.page += ["## Training step", "", f"Model FLOPs: 6 x matrix parameters x tokens + causal attention (half); MFU of the dense bf16 rate {peak} TFLOP/s. PyTorch: {PEER_SETTINGS}.", "",
                      table(["shape", "who", "tokens/s", "ms", "TFLOP/s", "MFU", "peak GiB"], rows)]
        return held(record, failures, ", ".join(f"{s} {r['ratio'][0]:.2f}x" for s, r in record.items() if "ratio" in r))

    def long(self, limit):
        """Llama 1B with heads of size 128 over long sequences, blocks recomputed: whole, in chunks, with what waits in the host's memory; PyTorch
        beside it; then attention alone, and the longest sequence."""
        record, bad, said, end = {"lines": []}, [], [], time.time() + limit
        chunks, offload = ["sequence_chunk_size=8192"], ["sequence_chunk_size=8192", "activation_offload=host"]
        ours = lambda length, keys: ["step", "llama3_1b", "device=cuda", "precision=bfloat16", "num_attention_heads=16", "num_kv_heads=4", f"seq_length={length}",
                                     f"max_position_embeddings={length}", "train_micro_batch_size_per_gpu=1", "checkpoint_activations=true", *keys]
        peer = [sys.executable, os.path.join(ROOT, "tests/peers/gpu_peer.py"), "llama3_1b", "--heads", "16", "--kv-heads", "4", "--length", "65536", "--batch", "1", "--steps", "2",
                "--recompute", "full", "--loss-chunk", "8192", "--ways", "blocks:default", "--warm-up", "1"]
        turn = [("65536 whole, deterministic false", ours(65536, ["deterministic=false", "train_iters=2"])), ("65536 in chunks", ours(65536, [*chunks, "train_iters=2"])),
                ("65536 in chunks, offload", ours(65536, [*offload, "train_iters=2"]))]
        for name, command in [*turn, ("65536 pytorch", peer), *turn, ("", ["op", "/64k", "--device", "cuda"]),
                              ("262144 in chunks, offload, first step", ours(262144, [*offload, "train_iters=1", "--warm-up", "0"]))]:
            if end - time.time() < 20:
                break
            if command is not peer:
                command = [self.tool("bench"), *command, "--json"] + ["--warm-up", "1"] * (command[0] == "step" and "--warm-up" not in command)
            code, text, _ = run(command, min(90, end - time.time()), None if command is peer else self.env(**self.fused()))
            lines = [l for l in json_lines(text) if "tokens_per_s" in l or not name]
            if not name:
                record["lines"] = lines
            if not lines or (code != 0 and command is not peer):
                bad.append(f"{name or 'bench op /64k'}: code {code}: {tail(text, 3)}")
                self.log(name or "bench op /64k", text)
            elif name:
                best = max(lines, key=lambda l: l["tokens_per_s"])
                record.setdefault(name, []).append(dict(best, **self.plans(text)))
                said.append(f"{name}: {best['step_ms'] / 1e3:.2f} s, {best['memory_peak_bytes'] / 2**30:.1f} GiB")
            self.so_far("long", dict(record, summary="; ".join(said)))
        return held(record, bad, "; ".join(said))

    def graph_speed(self, limit):
        """GPT-2 124M with one sequence a step, where the host is the limit: op by op and as graphs, in turns."""
        record = {"plain": [], "graphs": []}
        for who in ["plain", "graphs", "plain", "graphs"]:
            lines, said = self.bench(limit / 4, "step", "124m", "device=cuda", "precision=bfloat16", "train_iters=40", *(["cuda_graphs=true"] if who == "graphs" else []))
            made = said.count(": recorded, ")
            if made != (4 if who == "graphs" else 0):
                raise RuntimeError(f"{who}: {made} graphs: {tail(said, 3)}")
            record[who].append(lines[-1])
            self.so_far("graph_speed", record)
        best = {who: min(l["step_ms"] for l in record[who]) for who in ("plain", "graphs")}
        same = len({l["loss"] for who in ("plain", "graphs") for l in record[who]}) == 1
        text = (f"124m, batch 1: {best['plain']:.2f} ms op by op, {best['graphs']:.2f} ms as graphs "
                f"({best['plain'] / best['graphs']:.2f}x), losses {equal(same)}")
        self.page += ["## CUDA graphs", "", text + ".", ""]
        return dict(record, ok=same, summary=text)

    def sanitizer(self, limit):
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not os.path.exists(tool):
            return {"ok": None, "skipped": "no compute-sanitizer here"}
        record, bad, end = {}, [], time.time() + limit
        for kind in ["memcheck", "racecheck"]:
            share = (end - time.time()) / (2 if kind == "memcheck" else 1)
            wrap = [tool, "--tool", kind, "--error-exitcode", "9"]
            one = self.gtest(self.cuda_tests(), share, {"THINWIRE_CUDA_GUARD": "1", "THINWIRE_TEST_SMALL": "1"}, wrap)
            found = [n for n, t in one["tests"].items() if t.get("code") == 9]
            slow = [n for n, t in one["tests"].items() if t.get("code") == 124 or t.get("ok") is None]
            broken = [n for n, t in one["tests"].items() if t.get("code") not in (0, 9, 124, None)]
            record[kind] = {"tests": one["tests"], "errors": found, "out_of_time": slow, "broken": broken}
            bad += [f"{kind}: {n}" for n in found + broken]
        return held(record, bad, "; ".join(f"{k}: {sum(1 for t in r['tests'].values() if t.get('ok'))} programs clean, {len(r['out_of_time'])} out of time"
                                           for k, r in record.items()))

    def go(self):
        mode = self.options.mode
        steps = {"first": [(self.ceilings, 40), (self.products, 60), (self.reference, 120), (self.attention, 180), (self.step_1b, 150), (self.graph_speed, 60)],
                 "speed": [(self.ceilings, 40), (self.bench_op, 90), (self.coders, 60), (self.steps, 420)],
                 "large": [(self.ceilings, 40), (self.steps, 500)],
                 "long": [(self.ceilings, 40), (self.long, 500)],
                 "full": [(self.ceilings, 40), (self.ops, 200), (self.training, 60), (self.graphs, 40), (self.resume, 40), (self.mesh, 90), (self.mpi, 60), (self.nccl, 90), (self.nccl_stopped, 40), (self.pair_124m, 120)],
                 "sanitize": [(self.sanitizer, 500)]}[mode]
        known = ["device", "unpack", "build"] + [body.__name__ for body, _ in steps]
        unknown = [name for name in self.options.only or [] if name not in known]
        if unknown:
            print(f"error: gpu_check: --only: {mode} has no step {', '.join(unknown)} (known: {', '.join(known)})", file=sys.stderr)
            return 64
        self.step("device", self.device, 30)
        if not self.result["steps"].get("device", {"ok": True})["ok"]:
            print("error: gpu_check: no GPU here", file=sys.stderr)
            return 78
        self.step("unpack", self.unpack, 60)
        self.step("build", self.make, self.options.build_limit)
        if not self.result["steps"].get("build", {"ok": True})["ok"]:
            return 70
        for body, limit in steps:
            self.step(body.__name__, body, limit)
        failed = [n for n, r in self.result["steps"].items() if r["ok"] is False]
        skipped = [n for n, r in self.result["steps"].items() if r["ok"] is None]
        self.result["ok"] = not failed
        self.write()
        said = "FAILED: " + ", ".join(failed) if failed else "all that ran held" if skipped else "all held"
        said += "; skipped: " + ", ".join(skipped) if skipped else ""
        print(f"gpu_check: {mode}: {said} ({self.result['seconds']} s), see {self.out}/gpu_check.md")
        return 70 if failed else 0


def main():
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description="Builds and checks the CUDA backend on a machine with a GPU.")
    parser.add_argument("mode", choices=["first", "speed", "large", "long", "full", "sanitize"])
    parser.add_argument("--out", required=True, help="folder for gpu_check.json, .md and .log")
    parser.add_argument("--build", default=os.path.join(ROOT, "build-gpu"))
    parser.add_argument("--minutes", type=float, default=9.5, help="no step is started behind this")
    parser.add_argument("--build-limit", type=float, default=240, help="seconds that configuring and building may take")
    parser.add_argument("--packs", default=os.path.join(ROOT, ".cache/gpu"), help="where scripts/gpu_pack.sh has put its packs")
    parser.add_argument("--only", type=lambda text: text.split(","), help="steps to run (build is needed once)")
    try:
        options = parser.parse_args()
    except SystemExit as end:
        return 64 if end.code else 0
    return Check(options).go()


if __name__ == "__main__":
    sys.exit(main())
