# Containers of Thinwire, as hpccm writes them: packaging/hpccm/generate makes a Dockerfile and an Apptainer definition of it, for
# CPUs (Debian 12) and with `--userarg cuda=yes` for NVIDIA GPUs. The build folder holds the tarball of packaging/source_tarball.
# pylint: disable=undefined-variable
cuda = USERARG.get("cuda", "no") == "yes"
version = USERARG["version"]
base = "nvidia/cuda:13.0.1-cudnn-{}-ubuntu24.04" if cuda else "debian:12{}"
build_image, run_image = (base.format("devel"), base.format("runtime")) if cuda else (base.format(""), base.format("-slim"))
packages = ["mpich", "libmpich-dev", "libsentencepiece-dev", "liburing-dev", "libzfp-dev", "dpkg-dev", "file"]
if cuda:
    packages.append("python3-pip")  # fetches the front end of cuDNN, when its headers are asked for

Stage0 += comment(f"Written by packaging/hpccm/generate from recipe.py. Build it beside thinwire-{version}.tar.gz.", reformat=False)
Stage0 += baseimage(image=build_image, _as="build", _distro="ubuntu22")
Stage0 += copy(src=f"thinwire-{version}.tar.gz", dest=f"/opt/thinwire-{version}.tar.gz")
Stage0 += workdir(directory="/opt/thinwire")
Stage0 += shell(chdir=False, commands=[
    f"tar -xzf /opt/thinwire-{version}.tar.gz --strip-components=1",
    "scripts/install_deps.sh " + ("" if cuda else "--quickstart ") + " ".join("--with " + p for p in packages),
])
Stage0 += shell(chdir=False, commands=[
    "cmake --preset " + ("cuda" if cuda else "cpu") + " -B build -DTHINWIRE_TESTS=OFF -DCMAKE_INSTALL_PREFIX=/usr",
    "cmake --build build",
    "cpack --config build/CPackConfig.cmake -B /opt/packages",
    "rm -rf /opt/packages/_CPack_Packages",
])
Stage1 += baseimage(image=run_image, _distro="ubuntu22")
Stage1 += copy(_from="build", src="/opt/packages/", dest="/opt/packages/")
Stage1 += shell(chdir=False, commands=[
    "apt-get update -y",
    "DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends mpich /opt/packages/thinwire_*.deb",
    "rm -rf /var/lib/apt/lists/* /opt/packages",
])
Stage1 += label(metadata={"org.opencontainers.image.title": "thinwire", "org.opencontainers.image.version": version,
                          "org.opencontainers.image.licenses": "Apache-2.0"})
Stage1 += workdir(directory="/workspace")
