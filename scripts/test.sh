#!/usr/bin/env bash
# Builds everything and proves it: formatting, layering, headers, unit tests and invariants, the programs end to end. Does its own
# set-up and is safe to repeat.
#   scripts/test.sh          all of it
#   scripts/test.sh fast     the core: all programs, invariants of the model and the main ops, whole runs
#   scripts/test.sh full     all, and what takes long: sanitizers (also over whole runs, and of threads), fuzzing, packages
#   scripts/test.sh sanitize decoders and parsers alone, built with sanitizers, over the committed corpora
#   scripts/test.sh openmpi  the tests that start ranks, with Open MPI beside MPICH (scripts/test_openmpi)
set -euo pipefail
cd "$(dirname "$0")/.."
mode=${1:-all}
case "$mode" in
  -h | --help) sed -n '2,8p' scripts/test.sh | sed 's/^# \{0,1\}//'; exit 0 ;;
  all | fast | full | sanitize) ;;
  openmpi) exec scripts/test_openmpi ;;
  *) echo "error: test.sh: unknown mode $mode (known: fast, full, sanitize, openmpi)" >&2; exit 64 ;;
esac
say() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }

say "packages"
scripts/install_deps.sh

if [ "$mode" = sanitize ]; then
  # Whoever reads bytes from elsewhere: what a few minutes are enough for, from nothing.
  say "sanitizers: decoders and parsers"
  cmake --preset asan-fast >/dev/null
  cmake --build build-asan-fast -j "$(nproc)" --target fuzz_tests | tail -n 1
  ctest --test-dir build-asan-fast -R '_replay(_avx2)?_test$' --output-on-failure -j 2 --no-tests=error
  scripts/check_skips build-asan-fast
  exit 0
fi

say "build"
cmake --preset cpu -DTHINWIRE_TESTS=ON >build-configure.log 2>&1 || { cat build-configure.log >&2; exit 1; }
rm -f build-configure.log
if [ "$mode" = fast ]; then
  cmake --build build -j "$(nproc)" --target core | tail -n 2
else
  cmake --build build -j "$(nproc)" | tail -n 2
fi

say "house rules"
scripts/check_format
scripts/check_layering
[ "$mode" = fast ] || scripts/check_headers

say "tests"
export OMP_WAIT_POLICY=passive
[ "$mode" != full ] || export THINWIRE_TEST_FULL=1  # all cases of tests that otherwise take a part of them
if [ "$mode" = fast ]; then
  ctest --test-dir build -L core --output-on-failure -j 2 --no-tests=error
else
  ctest --test-dir build --output-on-failure -j 3 --no-tests=error  # on two cores: many wait for clocks
fi
scripts/check_skips build

if [ "$mode" = full ]; then
  say "sanitizers"
  cmake --preset asan >/dev/null
  cmake --build build-asan -j "$(nproc)" | tail -n 1
  ctest --test-dir build-asan -L fast --output-on-failure -j 2 --no-tests=error
  scripts/check_sanitized_runs build-asan

  say "ThreadSanitizer over the communication layer"
  cmake --preset tsan >/dev/null
  # device_mistakes_test makes races on purpose.
  mapfile -t comm < <(sed -n 's/^thinwire_test(\([a-z_]*\) .*/\1/p' tests/comm/CMakeLists.txt | grep -v device_mistakes) && comm+=(flight_recorder_test two_level_test watchdog_test)
  cmake --build build-tsan -j "$(nproc)" --target "${comm[@]}" | tail -n 1
  ctest --test-dir build-tsan -R "^($(IFS='|'; echo "${comm[*]}"))\$" --output-on-failure -j 2 --no-tests=error

  say "fuzzing"  # the normal run replays tests/fuzz/corpora; here every decoder and parser gets a minute of new inputs
  tests/fuzz/run_fuzzers build-fuzz -max_total_time=60 || [ $? = 77 ]

  say "packages, where nothing of ours is"
  python3 tests/packaging/packaging_test.py --full
  packaging/chroot_test || [ $? = 77 ]
fi
say "all green"
