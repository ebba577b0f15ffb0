# scripts/check_layering on a small made-up tree: each file that breaks a rule is named with its reason, no other one is.
import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "scripts", "check_layering")
loader = importlib.machinery.SourceFileLoader("check_layering", SCRIPT)
check_layering = importlib.util.module_from_spec(importlib.util.spec_from_loader("check_layering", loader))
loader.exec_module(check_layering)

OPENING = "// A module made up for the test.\n"
GOOD = {
    "engine/base/core/a.h": OPENING,
    "engine/base/ops/b.h": OPENING + '#include "engine/base/core/a.h"\n// MPI_Send and "MPI_Send" may be written about\n',
    "model/c.h": OPENING + '#include "engine/base/ops/b.h"\n#include "parallel/sites/e.h"\n',
    "parallel/sites/e.h": OPENING + '#include "compression/f.h"\n',
    "compression/f.h": OPENING,
    "parallel/wire/g.cpp": OPENING + "#include <mpi.h>\n// MPI_Wait would block\nvoid f() { MPI_Isend(0), MPI_Ibarrier(0), MPI_Testsome(0); }\n",
    "parallel/wire/raw_mpi_bench.cpp": OPENING + "#include <mpi.h>\nvoid f() { MPI_Barrier(0); }\n",
    "parallel/wire/transport_mpi.cpp": OPENING + "#include <mpi.h>\nvoid f() { MPI_Allgather(0); }\n",
    "tests/comm/plain.cpp": OPENING + "#include <mpi.h>\nvoid f() { MPI_Allreduce(0); }\n",
    "engine/run/train/h.cpp": OPENING + '#include "model/c.h"\n#include "engine/run/trace/i.h"\n',
    "engine/run/trace/i.h": OPENING,
    "engine/run/bench/j.cpp": OPENING + '#include "engine/run/trace/i.h"\n',
    "tests/t.cpp": OPENING + '#include "model/c.h"\n',
    "scripts/tool.py": "#!/usr/bin/env python3\n# A tool made up for it.\n",
    "data/big_table.inc": OPENING + "0,\n" * 700,
}

# One of each kind of call that returns only when another rank has done its part.
BLOCKING = ["MPI_Wait", "MPI_Waitall", "MPI_Waitsome", "MPI_Probe", "MPI_Mprobe", "MPI_Recv", "MPI_Mrecv", "MPI_Send", "MPI_Ssend", "MPI_Rsend", "MPI_Sendrecv",
            "MPI_Barrier", "MPI_Bcast", "MPI_Gatherv", "MPI_Allgather", "MPI_Scatter", "MPI_Alltoallv", "MPI_Reduce", "MPI_Allreduce", "MPI_Reduce_scatter_block",
            "MPI_Scan", "MPI_Exscan", "MPI_Neighbor_alltoall", "MPI_Win_fence", "PMPI_Wait"]
# what is wrong, and what must be said of it (None: blamed on another file)
BAD = {
    "engine/base/core/up.h": (OPENING + '#include "engine/base/ops/b.h"\n', "must not include"),
    "compression/up_high.h": (OPENING + '#include "parallel/sites/e.h"\n', "must not include"),
    "model/codec.h": (OPENING + '#include "compression/f.h"\n', "must not include"),
    "optim/sees_model.h": (OPENING + '#include "model/c.h"\n', "must not include"),
    "data/sees_run.cpp": (OPENING + '#include "engine/run/trace/i.h"\n', "must not include"),
    "engine/run/trace/sees_train.cpp": (OPENING + '#include "engine/run/train/x.h"\n', "no such file"),
    "engine/run/train/sees_bench.cpp": (OPENING + '#include "engine/run/bench/j.cpp"\n', "must not include"),
    "parallel/zero/sees_sites.h": (OPENING + '#include "parallel/sites/e.h"\n', "must not include"),
    "parallel/collective/sees_sites.h": (OPENING + '#include "parallel/sites/e.h"\n', "must not include"),
    "data/relative.cpp": (OPENING + '#include "../model/c.h"\n', "no such file"),
    "model/sees_tests.cpp": (OPENING + '#include "tests/t.cpp"\n', "only tests"),
    "optim/mpi_header.cpp": (OPENING + "#include <mpi.h>\n", "MPI is used"),
    "optim/mpi_call.cpp": (OPENING + "void f() { MPI_Barrier(0); }\n", "MPI is used"),
    **{f"parallel/wire/blocks{i}.cpp": (OPENING + f"#include <mpi.h>\nvoid f() {{ {call}(0); }}\n", f"{call} blocks") for i, call in enumerate(BLOCKING)},
    "data/log.cpp": (OPENING + "#include <spdlog/spdlog.h>\n", "spdlog stays"),
    "data/dnnl.cpp": (OPENING + "#include <oneapi/dnnl/dnnl.hpp>\n", "oneDNN"),
    "model/nccl.cpp": (OPENING + "#include <nccl.h>\n", "NCCL stays"),
    "model/kernel.cpp": (OPENING + "#include <cuda_backend.cuh>\n", "kernels are written"),
    "model/switch.cpp": (OPENING + "#if defined(THINWIRE_CUDA)\n#endif\n", "no #if on CUDA"),
    "engine/base/ops/door.h": (OPENING + "#ifdef __CUDACC__\n#endif\n", "no #if on CUDA"),
    "model/silent.cpp": ("#include <vector>\n", "first line"),
    "scripts/silent.sh": ("#!/bin/sh\nset -e\n", "first line"),
    "model/long.cpp": (OPENING + "\n" * 600, "split the file"),
    "optim/c.h": (OPENING, "same file name"),
    "engine/base/device/loop.h": (OPENING + '#include "engine/base/device/loop2.h"\n', "in a circle"),
    "engine/base/device/loop2.h": (OPENING + '#include "engine/base/device/loop.h"\n', None),
    "elsewhere/module.h": (OPENING + '#include "engine/base/core/a.h"\n', "no module"),
}


class Rules(unittest.TestCase):
    def test_each_rule_catches_its_violation(self):
        with tempfile.TemporaryDirectory() as root:
            def put(path, text):
                os.makedirs(os.path.dirname(os.path.join(root, path)), exist_ok=True)
                with open(os.path.join(root, path), "w", encoding="utf-8") as f:
                    f.write(text)

            for path, text in GOOD.items():
                put(path, text)
            self.assertEqual(check_layering.check(root)[0], [])
            for path, (text, _) in BAD.items():
                put(path, text)
            violations = check_layering.check(root)[0]
            for path, (_, reason) in BAD.items():
                if reason is not None:
                    self.assertTrue(any(reason in v[2] for v in violations if v[0] == path), (path, reason, violations))
            self.assertEqual([v for v in violations if v[0] not in BAD], [])

    def test_a_folder_without_sources_has_not_passed(self):
        with tempfile.TemporaryDirectory() as root:
            self.assertEqual(subprocess.run([sys.executable, SCRIPT, root], capture_output=True, check=False).returncode, 64)


if __name__ == "__main__":
    unittest.main()
