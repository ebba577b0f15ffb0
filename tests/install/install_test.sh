#!/usr/bin/env bash
# Installs a build into a scratch prefix and builds a foreign project against it:  install_test.sh BUILD_DIR
set -euo pipefail
build=$1
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cmake --install "$build" --prefix "$scratch/prefix" >"$scratch/log" || { cat "$scratch/log"; exit 1; }
cmake -G Ninja -S "$here" -B "$scratch/build" -DCMAKE_PREFIX_PATH="$scratch/prefix" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
cmake --build "$scratch/build" >"$scratch/log" 2>&1 || { cat "$scratch/log"; exit 1; }
out=$("$scratch/build/uses_thinwire")
echo "$out"
case "$out" in *" 124439808") ;; *) echo "error: GPT-2 has 124439808 parameters"; exit 1 ;; esac
"$scratch/prefix/bin/train" --version | head -n 1
