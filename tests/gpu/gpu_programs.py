#!/usr/bin/env python3
"""Programs of a CUDA build for a machine that should not spend its minutes on building them.

usage: gpu_programs.py BUILD FOLDER   (scripts/gpu_pack.sh --programs BUILD does it)
FOLDER gets the programs and tests that gpu_check.py runs, stripped, in their places below the build; their libraries, without CUDA's
and the system's own, in lib/; MPI's launcher in bin/; the data of tests; and tests.json, the command of each test.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from gpu_process import ROOT

PROGRAMS = ("train", "bench", "reference_check", "tests/mesh_soak")
# What each Linux with a compiler, a driver and CUDA has; the first group has to be that of the machine.
OF_THE_SYSTEM = re.compile(r"^(ld-linux|libc|libm|libdl|librt|libpthread|libresolv|libstdc\+\+|libgcc_s|libgomp|libcuda|libcudart|libcublas|libcublasLt|libcudnn|libnccl|libnvrtc)\W")


def tests_of(build):
    text = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True, text=True).stdout
    tests = {t["name"]: t.get("command", [""]) for t in json.loads(text[text.index("{"):])["tests"]}
    return {n: c for n, c in tests.items() if n == "mesh_smoke_test" or ("cuda" in n and n.endswith("_test"))}


def libraries_of(programs):
    found = {}
    for program in programs:
        for line in subprocess.run(["ldd", program], stdout=subprocess.PIPE, check=True, text=True).stdout.splitlines():
            match = re.match(r"\s*(\S+) => (/\S+)", line)
            if match and not OF_THE_SYSTEM.match(match.group(1)):
                found[match.group(1)] = match.group(2)
    return found


def main(build, folder):
    build = os.path.abspath(build)
    tests = tests_of(build)
    programs = sorted({os.path.join(build, p) for p in PROGRAMS} | {command[0] or os.path.join(build, name) for name, command in tests.items()})
    data = glob.glob(os.path.join(build, "data", "tiny_text_document.*"))
    missing = [os.path.relpath(p, build) for p in programs if not os.path.isfile(p)] + ["tiny_data"] * (not data)
    if missing:
        sys.exit(f"error: gpu_programs: not built in {build}: {', '.join(missing)}")
    for program in programs:
        target = os.path.join(folder, os.path.relpath(program, build))
        os.makedirs(os.path.dirname(target), exist_ok=True)
        subprocess.run(["strip", "-o", target, program], check=True)
    for part in ("lib", "bin", "data"):
        os.makedirs(os.path.join(folder, part), exist_ok=True)
    launcher = [os.path.realpath(shutil.which(name)) for name in ("mpiexec.hydra", "hydra_pmi_proxy") if shutil.which(name)]
    for path in launcher:
        shutil.copy(path, os.path.join(folder, "bin"))
    for name, path in libraries_of(programs + launcher).items():
        subprocess.run(["strip", "--strip-unneeded", "-o", os.path.join(folder, "lib", name), os.path.realpath(path)], check=True)
    for path in data:
        shutil.copy(path, os.path.join(folder, "data"))
    listed = {n: [os.path.relpath(c[0], build)] + [a.replace(ROOT + "/", "") for a in c[1:]] for n, c in tests.items()}
    with open(os.path.join(folder, "tests.json"), "w") as file:
        json.dump(listed, file, indent=1)
    print(f"gpu_programs: {len(programs)} programs, {len(listed)} tests")


if __name__ == "__main__":
    main(*sys.argv[1:])
