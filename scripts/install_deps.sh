#!/usr/bin/env bash
# Installs what the build needs on Debian and its relatives, or says in one line what is missing. Safe to repeat, fast when done.
#   scripts/install_deps.sh                everything: building, testing, formatting
#   scripts/install_deps.sh --quickstart   only what the quickstart builds and runs with
#   scripts/install_deps.sh --with PKG     this Debian package as well (may be repeated)
# Not root, not Debian, or THINWIRE_NO_INSTALL=1: no package is installed, and what environment modules or CMAKE_PREFIX_PATH offer counts.
# With nvcc and without that variable, cudnn-frontend's headers go to .cache. Exit codes: 0 all there, 1 missing (named) or not installable, 64 wrong option.
set -euo pipefail
self=$(cd "$(dirname "$0")" && pwd)/$(basename "$0")
cd "$(dirname "$self")/.."

quickstart=0 extra=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quickstart) quickstart=1 ;;
    --with)
      if [ $# -lt 2 ]; then echo "error: install_deps: --with needs a package name" >&2; exit 64; fi
      extra+=("$2")
      shift
      ;;
    -h | --help) sed -n '2,7p' "$self" | sed 's/^# \{0,1\}//'; exit 0 ;;
    *) echo "error: install_deps: unknown option $1 (known: --quickstart, --with PKG)" >&2; exit 64 ;;
  esac
  shift
done

# What cmake looks for, and what builds and runs the programs.
packages=(cmake ninja-build g++ libdnnl-dev nlohmann-json3-dev libspdlog-dev libfmt-dev libcli11-dev libxxhash-dev libyaml-dev libzstd-dev libicu-dev python3)
if [ "$quickstart" = 0 ]; then
  packages+=(ccache mpich libmpich-dev libgtest-dev libbenchmark-dev libsentencepiece-dev sentencepiece zstd libzfp-dev liburing-dev clang-format clang-tidy git)
fi
packages+=("${extra[@]}")
# What single tests need (they are skipped without it): the batch scripts are checked by shellcheck and run under a Slurm that the test starts
# (no service is set up for it), pages of the manual by mandoc and groff; the Python package's frames and plots. A distribution without
# them builds and tests all the rest.
optional=()
[ "$quickstart" = 1 ] || optional=(shellcheck slurm-wlm munge mandoc groff-base python3-pandas python3-matplotlib)

missing_of() { # PACKAGE ...
  local installed package
  [ $# -gt 0 ] || return 0
  # "ii": wanted and installed; a removed package that left its settings does not count.
  installed=$(dpkg-query -W -f='${db:Status-Abbrev} ${Package}\n' "$@" 2>/dev/null | sed -n 's/^ii *//p' || true)
  for package; do
    grep -qxF -- "$package" <<<"$installed" || echo "$package"
  done
}

quiet_apt() { DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 -qq -y "$@"; }
apt_install() { quiet_apt install --no-install-recommends "$@" >/dev/null; }

# Has cmake look for packages and headers in a scratch project, as the real build does: modules, prefixes and hand-made installs count.
missing_for_cmake() {
  local tool scratch
  for tool in cmake ninja python3; do
    command -v "$tool" >/dev/null || echo "$tool"
  done
  command -v "${CXX:-g++}" >/dev/null || command -v c++ >/dev/null || echo "g++ (or another C++20 compiler in CXX)"
  if [ "$quickstart" = 0 ]; then
    for tool in git clang-format mpicxx mpirun; do
      command -v "$tool" >/dev/null || echo "$tool"
    done
  fi
  command -v cmake >/dev/null && command -v ninja >/dev/null || return 0
  scratch=$(mktemp -d)
  cat >"$scratch/CMakeLists.txt" <<'CMAKE'
cmake_minimum_required(VERSION 3.25)
project(probe LANGUAGES CXX)
list(APPEND CMAKE_MODULE_PATH ${MODULES})
set(wanted OpenMP OneDNN nlohmann_json spdlog CLI11)
if(NOT QUICKSTART)
  list(APPEND wanted GTest)
endif()
foreach(package ${wanted})
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    message(STATUS "MISSING ${package}")
  endif()
endforeach()
find_package(ICU 70 QUIET COMPONENTS uc i18n)
if(NOT ICU_FOUND)
  message(STATUS "MISSING ICU 70 or later")
endif()
foreach(header xxhash.h yaml.h)
  find_path(${header}_dir ${header})
  if(NOT ${header}_dir)
    message(STATUS "MISSING ${header}")
  endif()
endforeach()
message(STATUS "PROBED")
CMAKE
  if cmake -G Ninja -S "$scratch" -B "$scratch/build" -DMODULES="$PWD/scripts/cmake" -DQUICKSTART="$quickstart" >"$scratch/log" 2>&1 &&
    grep -q PROBED "$scratch/log"; then
    sed -n 's/^-- MISSING //p' "$scratch/log"
  else
    echo "a C++ compiler and cmake >= 3.25 that work together ($(grep -m1 -iE 'error|required' "$scratch/log" || echo 'cmake failed'))"
  fi
  rm -rf "$scratch"
}

# Never a failure: tests that need them are skipped with the reason.
install_optional() {
  local missing package
  mapfile -t missing < <(missing_of "${optional[@]}")
  [ ${#missing[@]} -gt 0 ] || return 0
  echo "install_deps: installing for single tests: $(printf '%s\n' "${missing[@]}" | on_one_line)"
  apt_install "${missing[@]}" 2>/dev/null && return 0
  quiet_apt update >/dev/null 2>&1 || true # the lists may be missing or stale
  for package in "${missing[@]}"; do
    apt_install "$package" 2>/dev/null || echo "install_deps: note: $package cannot be installed here; the tests that need it are skipped"
  done
}

on_one_line() { paste -sd, - | sed 's/,/, /g'; }

install_packages() {
  local missing
  missing=$(missing_of "${packages[@]}")
  if [ -z "$missing" ]; then
    echo "install_deps: all ${#packages[@]} packages are installed"
    return 0
  fi
  echo "install_deps: installing: $(on_one_line <<<"$missing")"
  local names
  mapfile -t names <<<"$missing"
  # The package lists of a fresh container are empty and those of an old one stale: fetched only when they are the obstacle.
  if ! apt_install "${names[@]}" 2>/dev/null; then
    echo "install_deps: fetching package lists"
    quiet_apt update >/dev/null || { echo "error: install_deps: apt-get update failed: is this machine online?" >&2; return 1; }
    apt_install "${names[@]}" || {
      echo "error: install_deps: apt-get could not install: $(on_one_line <<<"$missing")" >&2
      return 1
    }
  fi
  missing=$(missing_of "${packages[@]}")
  if [ -n "$missing" ]; then
    echo "error: install_deps: still missing after apt-get: $(on_one_line <<<"$missing")" >&2
    return 1
  fi
  echo "install_deps: done"
}

accept_what_is_there() {
  local why=$1 missing
  if command -v dpkg-query >/dev/null && [ -z "$(missing_of "${packages[@]}")" ]; then
    echo "install_deps: all ${#packages[@]} packages are installed"
    return 0
  fi
  # cmake cannot look for packages given by --with: only their being installed counts.
  missing=$(missing_for_cmake && missing_of "${extra[@]}")
  if [ -z "$missing" ]; then
    echo "install_deps: cmake finds everything it needs ($why: nothing was installed)"
    return 0
  fi
  echo "error: install_deps: missing: $(on_one_line <<<"$missing"); $why, so nothing was installed: load modules that offer them, set CMAKE_PREFIX_PATH to their prefixes, or run this as root" >&2
  return 1
}

tree_hash() { (cd "$1" && LC_ALL=C find include -type f | LC_ALL=C sort | xargs sha256sum | sha256sum | cut -d' ' -f1); }

# cudnn-frontend is headers only and in no Debian package; without it the CUDA build has no fused attention.
fetch_cudnn_frontend() {
  local version=1.32.0 target=.cache/cudnn-frontend scratch
  # SHA-256 over the sorted list of the headers' SHA-256 sums: wheels differ by Python version and platform, their headers do not.
  local pinned=ec7ebdc90080e6b7da3766ccbb16bb0ce7e31d4d39faaed2b28500da72e0c286
  if [ -f "$target/include/cudnn_frontend.h" ] && [ "$(cat "$target/VERSION" 2>/dev/null)" = "$version" ]; then
    echo "install_deps: cudnn-frontend $version headers are in $target/include"
    return 0
  fi
  scratch=$(mktemp -d)
  # A wheel is a zip archive; only its headers are kept.
  if python3 -m pip download -q --no-deps -d "$scratch" "nvidia-cudnn-frontend==$version" >"$scratch/log" 2>&1 &&
    python3 -m zipfile -e "$scratch"/*.whl "$scratch/wheel" >>"$scratch/log" 2>&1 && [ "$(tree_hash "$scratch/wheel")" = "$pinned" ]; then
    mkdir -p .cache
    rm -rf "$target"
    mkdir "$target"
    cp -R "$scratch/wheel/include" "$target/include"
    echo "$version" >"$target/VERSION"
    echo "install_deps: cudnn-frontend $version headers put into $target/include"
  else
    echo "warning: install_deps: cudnn-frontend $version could not be fetched with python3 -m pip, or is not what was pinned ($(tail -n 1 "$scratch/log" 2>/dev/null)); put its headers into $target/include for fused attention on GPUs" >&2
  fi
  rm -rf "$scratch"
}

if [ "${THINWIRE_NO_INSTALL:-0}" = 1 ]; then
  accept_what_is_there "THINWIRE_NO_INSTALL=1"
elif ! command -v apt-get >/dev/null || ! command -v dpkg-query >/dev/null; then
  accept_what_is_there "this system has no apt-get"
elif [ "$(id -u)" != 0 ]; then
  accept_what_is_there "not root"
else
  install_packages
  install_optional
fi
if [ "$quickstart" = 0 ] && [ "${THINWIRE_NO_INSTALL:-0}" != 1 ] && command -v nvcc >/dev/null; then
  fetch_cudnn_frontend
fi
