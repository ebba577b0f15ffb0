#!/usr/bin/env bash
# Packs what a bare GPU machine lacks into .cache/gpu (ignored by git): headers and libraries of our dependencies, MPICH with its
# launcher, the headers of cudnn-frontend, the test vectors. The GPU machine needs CUDA, a C++ compiler, cmake and ninja alone.
#   scripts/gpu_pack.sh [--vectors DIR|none] [--out DIR] [--limit MIB] [--programs BUILD]
# --programs: instead of what a build needs, the programs of a CUDA build of this tree, for x86-64 and a C library no older than here.
# Vectors: ../shared/vectors, or $THINWIRE_VECTORS. Writes DIR/deps.tar.xz or programs.tar.xz, and vectors.tar.xz (default
# .cache/gpu); carry DIR with the tree. A package that is missing, or a tree and packs beyond the limit (64 MiB together), is an error. Exit codes: 0, 1, 64.
set -euo pipefail
cd "$(dirname "$0")/.."
vectors=${THINWIRE_VECTORS:-../shared/vectors} out=.cache/gpu limit=64 programs=
while [ $# -gt 0 ]; do
  case "$1" in
    --vectors | --out | --limit | --programs)
      if [ $# -lt 2 ]; then echo "error: gpu_pack: $1 needs a value" >&2; exit 64; fi
      declare "${1#--}=$2"
      shift
      ;;
    -h | --help) sed -n '2,8p' "$0" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "error: gpu_pack: unknown option $1 (known: --vectors, --out, --limit, --programs)" >&2; exit 64 ;;
  esac
  shift
done
case "$limit" in '' | *[!0-9]*) echo "error: gpu_pack: --limit is a number of MiB, not $limit" >&2; exit 64 ;; esac
if [ "$vectors" != none ] && [ ! -d "$vectors" ]; then
  echo "error: gpu_pack: no vectors at $vectors: --vectors DIR, or --vectors none for the models of the tree alone" >&2
  exit 1
fi
mkdir -p "$out"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
pack_dependencies() {
  local root=$scratch/deps package file to link target real name
  mkdir -p "$root"

  # Files of Debian packages, in their places below the root: CMake's package files find their libraries relative to themselves.
  packages=(libdnnl-dev libdnnl2 nlohmann-json3-dev libspdlog-dev libspdlog1.10 libfmt-dev libfmt9 libcli11-dev libxxhash-dev libxxhash0 libyaml-dev libyaml-0-2 libicu-dev libicu72
    libzstd-dev libzstd1 libgtest-dev libmpich-dev libmpich12 mpich libhwloc15 libhwloc-dev libucx0 libslurm38 libnuma1 libudev1
    libsentencepiece-dev libsentencepiece0)
  missing=()
  for package in "${packages[@]}"; do
    dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null | grep -q '^ii' || missing+=("$package")
  done
  [ -f .cache/cudnn-frontend/include/cudnn_frontend.h ] || missing+=("the headers of cudnn-frontend")
  if [ ${#missing[@]} -gt 0 ]; then
    echo "error: gpu_pack: missing here: $(printf '%s\n' "${missing[@]}" | paste -sd, - | sed 's/,/, /g') (scripts/install_deps.sh installs them)" >&2
    exit 1
  fi
  for package in "${packages[@]}"; do
    dpkg -L "$package" | grep -E '^(/usr/(include|lib|bin|share/cmake)|/lib|/etc/alternatives)' | grep -vE '\.a$|/(man|doc|fortran|pkgconfig)/|\.mod$|/examples/' |
      while IFS= read -r file; do
        if [ -d "$file" ] && [ ! -L "$file" ]; then continue; fi
        case "$file" in /lib/*) to=$root/usr$file ;; *) to=$root$file ;; esac
        mkdir -p "$(dirname "$to")"
        cp -a "$file" "$to"
      done || true
  done
  # The test library is static there; links that leave the folder are made files.
  cp -a /usr/lib/*/libgtest*.a "$root/usr/lib/x86_64-linux-gnu/" 2>/dev/null || true
  find "$root" -type l | while IFS= read -r link; do
    target=$(readlink "$link")
    case "$target" in
      /*) real=$(readlink -f "${link#"$root"}" || true)
          if [ -n "$real" ] && [ -f "$real" ]; then rm "$link"; cp "$real" "$link"; fi ;;
    esac
  done
  find "$root" -type f -name '*.so*' -exec strip --strip-unneeded {} + 2>/dev/null || true

  # MPI by hand: the packed wrapper knows only its old place.
  rm -rf "$root/usr/bin"
  mkdir -p "$root/bin"
  cat >"$root/bin/mpicxx" <<'WRAPPER'
#!/bin/sh
here=$(cd "$(dirname "$0")/../usr" && pwd)
flags="-I$here/include/x86_64-linux-gnu/mpich -L$here/lib/x86_64-linux-gnu -lmpichcxx -lmpich"
case "$1" in -show | -compile_info | -link_info | --showme*) echo "g++ $flags" ;; *) exec g++ "$@" $flags ;; esac
WRAPPER
  chmod +x "$root/bin/mpicxx"
  for name in mpiexec.hydra hydra_pmi_proxy hydra_nameserver; do
    if [ -f "/usr/bin/$name" ]; then cp "/usr/bin/$name" "$root/bin/$name"; fi
  done
  mkdir -p "$root/cudnn-frontend"
  cp -R .cache/cudnn-frontend/include "$root/cudnn-frontend/"
}

rm -f "$out"/{deps,programs,vectors}.tar.xz
if [ -n "$programs" ]; then
  python3 tests/gpu/gpu_programs.py "$programs" "$scratch/programs"
  tar -C "$scratch" -cf - programs | xz --lzma2=preset=4,dict=512MiB >"$out/programs.tar.xz"
else
  pack_dependencies
  tar -C "$scratch" -cf - deps | xz -6 -T0 >"$out/deps.tar.xz"
fi
if [ "$vectors" != none ]; then
  tar -C "$(dirname "$vectors")" --transform "s,^$(basename "$vectors"),vectors," -cf - "$(basename "$vectors")" | xz -6 -T0 >"$out/vectors.tar.xz"
fi
du -k "$out"/*.tar.xz | awk '{printf "gpu_pack: %s %.1f MiB\n", $2, $1 / 1024}'
packs=$(du -ck "$out"/*.tar.xz | tail -n 1 | cut -f1)
tree=$(git ls-files -z --cached --others --exclude-standard | xargs -0 env LC_ALL=C du -ck 2>/dev/null | awk '$2 == "total" {sum += $1} END {print sum + 0}') || true  # du misses what is deleted and still tracked
echo "gpu_pack: $(((packs + tree + 1023) / 1024)) MiB with the tree, of $limit that travel"
if [ $((packs + tree)) -gt $((limit * 1024)) ]; then
  echo "error: gpu_pack: packs of $((packs / 1024)) MiB and a tree of $((tree / 1024)) MiB are more than $limit MiB: they do not travel" >&2
  exit 1
fi
