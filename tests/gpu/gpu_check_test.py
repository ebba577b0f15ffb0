# scripts/gpu_check.sh and gpu_pack.sh where there is no GPU: stand-ins for the driver, the compiler, the build and our programs
# provoke what used to hide a fault, and each has to fail the check by name.
import glob
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "train"))
import run_support

# What stands in for everything: reads what is wrong today from $FAULTS, and says what it was called with in $CALLS.
STAND_IN = """#!{python} -S
import json, os, sys, time
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
def hang():  # as long as somebody waits
    parent, end = os.getppid(), time.time() + 60
    while os.getppid() == parent and time.time() < end:
        time.sleep(0.05)
faults = os.environ.get("FAULTS", "").split(",")
with open(os.environ["CALLS"], "a") as file:
    file.write(json.dumps([name, words, os.environ.get("THINWIRE_ATTENTION", ""), os.environ.get("LD_LIBRARY_PATH", "")]) + "\\n")
joined = " ".join(words)
if name == "nvidia-smi":
    if "no_gpu" in faults:
        sys.exit(9)
    print("NVIDIA H100 80GB HBM3, 81559 MiB, 81000 MiB, 580.1, 9.0, 345 MHz, 2619 MHz")
elif name == "nvcc":
    print("Cuda compilation tools, release 13.0, V13.0.88")
elif name == "cmake":
    print("-- Fused attention: OFF (cuDNN headers NOTFOUND)" if "no_front_end" in faults else "-- Configuring done")
elif name == "ninja":
    if "slow_build" in faults:
        hang()
    folder = words[words.index("-C") + 1]
    os.makedirs(folder + "/tests", exist_ok=True)
    for program in ("bench", "reference_check", "tests/matmul_cuda", "tests/attention_fused_cuda"):
        if not os.path.lexists(os.path.join(folder, program)):
            os.symlink(os.path.realpath(sys.argv[0]), os.path.join(folder, program))
elif name == "ctest":
    build = words[words.index("--test-dir") + 1]
    tests = [(t + "_test", [build + "/tests/" + t, t + "_test.cpp"]) for t in ("matmul_cuda", "attention_fused_cuda")]
    print(json.dumps({{"tests": [{{"name": n, "command": c}} for n, c in tests]}}))
elif name == "bench" and words == ["--version"]:
    print("backends cpu, cuda 13.0.88 (sm 90a-real, " + ("own attention alone)" if "no_cudnn" in faults else "cuDNN attention)"))
elif name == "bench":
    if "plan_fails" in faults and words[:2] == ["step", "llama3_1b"]:
        print("warning: attention of length 2048 runs on our own kernels, which are slower: no plan")
        if os.environ.get("THINWIRE_ATTENTION") == "fused":
            sys.exit(78)
    if "no_room" in faults and "activation_offload=host" in words:
        sys.exit("error: bench: page-locked memory")
    if "hangs_in_1b" in faults and "deterministic=false" in words:
        hang()
    if "cuda_graphs=true" in words:
        print("cuda_graphs: x: recorded, 7 launches\\n" * 4)
    print("attention of length 2048, 32/8 heads of size 64, batch 8, forward: plan in 12.5 ms, workspace 64 bytes, priced at 0")
    print(json.dumps({{"op": "x", "gbytes_per_s": 2900.0, "gflops": 790000.0, "step_ms": 230.0, "tokens_per_s": 7e4, "model_tflops_per_rank": 550.0, "loss": 1.0, "memory_peak_bytes": 2**34}}))
elif name == "reference_check":
    bad = "wrong_bf16" in faults and "precision=bfloat16" in words and "deterministic=false" in words
    print("loss 1 1 1 " + ("FAIL" if bad else "ok"))
    sys.exit(1 if bad else 0)
elif name in ("matmul_cuda", "attention_fused_cuda"):
    if "test_skips" in faults and name == "attention_fused_cuda":
        print("[  PASSED  ] 0 tests.\\n[  SKIPPED ] 4 tests, listed below:")
    elif "wrong_attention" in faults and name == "attention_fused_cuda":
        sys.exit(1)
    else:
        print("[  PASSED  ] 4 tests.")
        if os.environ.get("THINWIRE_DEVICE_JSON"):
            open(os.environ["THINWIRE_DEVICE_JSON"], "w").write("{{}}")
elif name == "dpkg-query":
    print("un " if "no_package" in faults and "mpich" in words else "ii ")
elif name == "dpkg":
    pass
"""
FIRST = ["device", "unpack", "build", "ceilings", "products", "reference", "attention", "step_1b", "graph_speed"]


class StandIns(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.bin = os.path.join(self.folder.name, "bin")
        os.mkdir(self.bin)
        path = os.path.join(self.bin, "stand_in")
        with open(path, "w") as file:
            file.write(STAND_IN.format(python=sys.executable))
        os.chmod(path, stat.S_IRWXU)
        for name in ("nvidia-smi", "nvcc", "cmake", "ninja", "ctest", "dpkg-query", "dpkg"):
            os.symlink("stand_in", os.path.join(self.bin, name))
        # The programs are links, too: what they are called decides what they do.
        self.calls = os.path.join(self.folder.name, "calls")
        self.out = os.path.join(self.folder.name, "out")

    def environment(self, faults):
        return dict(os.environ, PATH=self.bin + ":" + os.environ["PATH"], FAULTS=faults, CALLS=self.calls, THINWIRE_VECTORS="/nonexistent")

    def command(self, mode, *more):
        return [os.path.join(ROOT, "scripts", "gpu_check.sh"), mode, "--out", self.out, "--build", os.path.join(self.folder.name, "build"),
                "--packs", os.path.join(self.folder.name, "packs"), *more]

    def check(self, faults="", mode="first", more=()):
        done = subprocess.run(self.command(mode, *more), env=self.environment(faults), capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr, self.result()

    def result(self):
        with open(os.path.join(self.out, "gpu_check.json")) as file:
            return json.load(file)

    def called(self, program):
        with open(self.calls) as file:
            return [line for line in map(json.loads, file) if line[0] == program]

    def failed(self, faults, step, words, last=None):
        """The check fails in that step alone, with these words; `last`: nothing ran behind it."""
        code, said, result = self.check(faults)
        self.assertEqual(code, 70, said)
        self.assertEqual([n for n, r in result["steps"].items() if r["ok"] is False], [step], said)
        self.assertRegex(result["steps"][step]["error"], words)
        if last:
            self.assertEqual(list(result["steps"])[-1], step)

    def test_the_first_call_in_its_order(self):
        code, said, result = self.check()
        self.assertEqual(code, 0, said)
        self.assertEqual(list(result["steps"]), FIRST)
        self.assertTrue(all(r["ok"] for r in result["steps"].values()), said)
        configure = next(words for _, words, *_ in self.called("cmake"))
        self.assertIn("-DTHINWIRE_WERROR=OFF", configure)
        self.assertIn("-DTHINWIRE_CUDA_ARCHITECTURES=90a-real", configure)
        built = next(words for _, words, *_ in self.called("ninja"))
        self.assertEqual(built[2:], ["bench", "reference_check", "matmul_cuda_test", "attention_fused_cuda_test"])
        checked = [[w for w in words if "=" in w][1:] for _, words, *_ in self.called("reference_check")]
        self.assertEqual(checked, [[f"precision={p}", f"deterministic={d}"] for p in ("bfloat16", "fp32") for d in ("true", "false")])
        steps = [(words[1:], wish) for _, words, wish, _ in self.called("bench") if words[:2] == ["step", "llama3_1b"]]
        self.assertEqual([("--profile" in words, [w for w in words if "deterministic" in w][0]) for words, _ in steps],
                         [(False, "deterministic=true"), (False, "deterministic=false"), (True, "deterministic=true"), (True, "deterministic=false")])
        self.assertEqual({wish for _, wish in steps}, {"fused"}, "a plan that fails has to be an error")
        self.assertEqual(result["steps"]["step_1b"]["deterministic true"]["plans"][0]["ms"], 12.5)
        self.assertTrue(os.path.exists(os.path.join(self.out, "device_properties.json")))

    def test_long_sequences(self):
        code, said, result = self.check("no_room", mode="long")
        self.assertEqual(code, 70, said)
        self.assertRegex(result["steps"]["long"]["error"], "65536 in chunks, offload: code 1: error: bench: page-locked memory")
        self.assertRegex(result["steps"]["long"]["error"], "65536 pytorch: code 1", "there is none where this test runs")
        self.assertEqual([len(result["steps"]["long"][f"65536 {how}"]) for how in ("whole, deterministic false", "in chunks")], [2, 2])

    def test_no_gpu(self):
        self.assertEqual(self.check("no_gpu")[0], 78)

    def test_a_missing_front_end(self):
        self.failed("no_front_end", "build", "Fused attention: OFF.*nothing was built", last=True)
        self.assertEqual(self.called("ninja"), [])

    def test_a_build_without_cudnn(self):
        self.failed("no_cudnn", "build", "no cuDNN attention", last=True)

    def test_a_build_that_takes_too_long(self):
        code, said, result = self.check("slow_build", more=("--build-limit", "2"))
        self.assertEqual(code, 70, said)
        self.assertIn("not built within 2 s", result["steps"]["build"]["error"])

    def test_a_plan_that_fails(self):
        self.failed("plan_fails", "step_1b", "runs on our own kernels")

    def test_wrong_attention(self):
        self.failed("wrong_attention", "attention", "attention_fused_cuda_test")

    def test_a_test_that_skips_on_a_gpu(self):
        self.failed("test_skips", "attention", "nothing passed, 4 skipped")

    def test_one_setting_of_the_reference_check(self):
        self.failed("wrong_bf16", "reference", "bfloat16, deterministic false: code 1")

    def kill_steps(self):
        """Steps are sessions of their own: they outlive a check that was killed."""
        mark = self.folder.name.encode()
        for pid in (p for p in os.listdir("/proc") if p.isdigit()):
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    command = file.read()
                if mark in command:
                    os.kill(int(pid), signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.5)

    def test_a_call_that_is_cut_off_leaves_what_it_found(self):
        child = subprocess.Popen(self.command("first"), env=self.environment("hangs_in_1b"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                 start_new_session=True)
        try:
            deadline = time.time() + 60
            while time.time() < deadline:
                if os.path.exists(os.path.join(self.out, "gpu_check.json")) and "step_1b" in self.result()["steps"]:
                    break
                time.sleep(0.1)
        finally:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            self.kill_steps()
        step = self.result()["steps"]["step_1b"]
        self.assertEqual(step["skipped"], "under way")
        self.assertEqual(step["deterministic true"]["step_ms"], 230.0)
        self.assertEqual(list(self.result()["steps"]), FIRST[:-1])

    def archive(self, tree, *names):
        """Packs of these folders of `tree`; the mark names the folder under /tmp that they are unpacked into: this test's own."""
        packs = os.path.join(self.folder.name, "packs")
        os.mkdir(packs)
        for name in names:
            with open(os.path.join(tree, name, "mark"), "w") as file:
                file.write(self.folder.name)
            with tarfile.open(os.path.join(packs, name + ".tar.xz"), "w:xz") as archive:
                archive.add(os.path.join(tree, name), name)
        before = set(glob.glob("/tmp/thinwire-*"))

        def remove():
            for folder in set(glob.glob("/tmp/thinwire-*")) - before:
                if os.path.exists(os.path.join(folder, ".done")):
                    subprocess.run(["rm", "-rf", folder], check=True)
        self.addCleanup(remove)

    def test_programs_that_were_brought_along(self):
        tree = os.path.join(self.folder.name, "tree")
        programs = {"bench": "bench", "reference_check": "reference_check", "matmul_cuda_test": "tests/matmul_cuda", "attention_fused_cuda_test": "tests/attention_fused_cuda"}
        os.makedirs(os.path.join(tree, "programs", "tests"))
        for path in programs.values():
            shutil.copy(os.path.join(self.bin, "stand_in"), os.path.join(tree, "programs", path))
        with open(os.path.join(tree, "programs", "tests.json"), "w") as file:
            json.dump({n: [p, n + ".cpp"] for n, p in programs.items() if n.endswith("_test")}, file)
        self.archive(tree, "programs")
        code, said, result = self.check()
        self.assertEqual(code, 0, said)
        self.assertEqual(list(result["steps"]), FIRST)
        self.assertEqual(self.called("cmake") + self.called("ninja") + self.called("ctest"), [])
        self.assertIn("/programs/lib", self.called("matmul_cuda")[0][3])
        self.assertEqual(self.called("matmul_cuda")[0][1][0], "matmul_cuda_test.cpp")

    def test_single_steps_keep_libraries_and_vectors(self):
        tree = os.path.join(self.folder.name, "tree")
        for path in ("deps/usr/lib/x86_64-linux-gnu", *(f"vectors/models/{f}" for f in ("gpt2", "llama", "neox"))):
            os.makedirs(os.path.join(tree, path))
        self.archive(tree, "deps", "vectors")
        self.assertEqual(self.check()[0], 0)
        os.remove(self.calls)
        code, said, _ = self.check(more=("--only", "reference"))
        self.assertEqual(code, 0, said)
        for _, words, wish, libraries in self.called("reference_check"):
            self.assertIn("/deps/usr/lib/x86_64-linux-gnu", libraries)
            self.assertTrue(all("/vectors/models/" in w for w in words[:3]), words)
            self.assertEqual(wish, "fused" if "precision=bfloat16" in words else "")

    def test_a_step_that_there_is_not(self):
        done = subprocess.run(self.command("first", "--only", "build,refrence"), env=self.environment(""), capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 64, done.stdout)
        self.assertRegex(done.stderr, "first has no step refrence .*reference")

    def pack(self, faults="", *more):
        command = [os.path.join(ROOT, "scripts", "gpu_pack.sh"), "--vectors", "none", "--out", os.path.join(self.folder.name, "packs"), *more]
        done = subprocess.run(command, env=self.environment(faults), capture_output=True, text=True, timeout=120, check=False)
        return done.returncode, done.stdout + done.stderr

    def test_a_pack_that_lacks_a_package(self):
        code, said = self.pack("no_package")
        self.assertEqual(code, 1, said)
        self.assertRegex(said, r"error: gpu_pack: missing here: .*mpich")
        self.assertFalse(os.path.exists(os.path.join(self.folder.name, "packs", "deps.tar.xz")))

    def test_a_pack_that_does_not_travel(self):
        if not os.path.exists(os.path.join(ROOT, ".cache", "cudnn-frontend", "include", "cudnn_frontend.h")):
            self.assertRegex(self.pack()[1], "cudnn-frontend")
            return
        with open(os.path.join(self.bin, "xz"), "w") as file:  # how small packs become is not asked here
            file.write("#!/bin/sh\nexec cat\n")
        os.chmod(os.path.join(self.bin, "xz"), stat.S_IRWXU)
        code, said = self.pack("", "--limit", "1")
        self.assertEqual(code, 1, said)
        self.assertRegex(said, "error: gpu_pack: packs of .* are more than 1 MiB")
        self.assertEqual(self.pack("", "--limit", "4000")[0], 0)
        self.assertEqual(self.pack("", "--limit", "x")[0], 64)


if __name__ == "__main__":
    run_support.main()
