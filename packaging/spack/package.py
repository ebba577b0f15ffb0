# The Spack recipe. There is no public place to fetch from yet: it builds a tree (`spack dev-build`) or a tarball in the current folder.
import os

from spack.package import *
from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage


class Thinwire(CMakePackage, CudaPackage):
    """Thinwire pre-trains GPT-style transformers over many machines, and compresses what goes between them."""

    url = f"file://{os.getcwd()}/thinwire-0.2.0.tar.gz"
    manual_download = True  # packaging/source_tarball makes it
    license("Apache-2.0")

    version("0.2.0")

    variant("mpi", default=True, description="Several ranks; without it programs run as one")
    variant("bench", default=True, description="The program bench")
    variant("sentencepiece", default=True, description="Tokenizers of SentencePiece")
    variant("uring", default=True, description="io_uring for activations that wait on disk")
    variant("cudnn", default=True, when="+cuda", description="cuDNN's attention; its front end is looked for in CUDNN_FRONTEND_ROOT")
    generator("ninja")

    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("python@3.9:", type=("build", "run"))
    depends_on("onednn")
    depends_on("nlohmann-json")
    depends_on("spdlog")
    depends_on("cli11@2:")
    depends_on("xxhash")
    depends_on("libyaml")
    depends_on("icu4c@70:")
    depends_on("mpi", when="+mpi")
    depends_on("sentencepiece", when="+sentencepiece")
    depends_on("liburing", when="+uring")
    depends_on("zfp", when="+bench")
    depends_on("zstd", when="+bench")
    depends_on("cuda@13:", when="+cuda")
    depends_on("cudnn@9:", when="+cudnn")
    depends_on("nccl", when="+cuda")
    depends_on("googletest", type="test")

    conflicts("%gcc@:10", msg="C++20 as of GCC 11")
    conflicts("cuda_arch=none", when="+cuda", msg="cuda_arch=80, 90a or 100")

    def cmake_args(self):
        args = [
            self.define_from_variant("THINWIRE_MPI", "mpi"),
            self.define_from_variant("THINWIRE_BENCH", "bench"),
            self.define_from_variant("THINWIRE_SENTENCEPIECE", "sentencepiece"),
            self.define_from_variant("THINWIRE_URING", "uring"),
            self.define_from_variant("THINWIRE_CUDA", "cuda"),
            self.define("THINWIRE_TESTS", self.run_tests),
            self.define("THINWIRE_WERROR", False),  # a compiler that we have not seen may warn of more
        ]
        if self.spec.satisfies("+cuda"):
            # A kernel for sm_90 that uses what only Hopper has is called 90a.
            archs = ["90a" if a == "90" else a for a in self.spec.variants["cuda_arch"].value]
            args.append(self.define("THINWIRE_CUDA_ARCHITECTURES", ";".join(a + "-real" for a in archs)))
            args.append(self.define_from_variant("THINWIRE_CUDNN", "cudnn"))
            frontend = os.environ.get("CUDNN_FRONTEND_ROOT")
            if frontend:
                args.append(self.define("CUDNN_FRONTEND_INCLUDE_DIR", os.path.join(frontend, "include")))
        return args
