#!/bin/bash
# The watchdog under a launcher: stopped, killed, late and stuck ranks. usage: watchdog_mpi_test.sh WATCH_RANK LAUNCHER...
#
# Seen with MPICH 4.0 (Hydra): a coded end gives mpiexec's own code 71; kill -9 of a rank gives 9 and the others are killed
# at once, without any watchdog. Open MPI gives 137 for the latter.
set -u
rank_program=$1
shift
launch=("$@")
limit=2 slack=10
resolve=$(dirname "$0")/../../scripts/resolve_stacks
work=$(mktemp -d)
launcher=
failures=0

# Whether a process runs: a zombie whose parent is gone is over, even where nobody collects it.
runs() { grep -q '^State:[[:space:]]*[^[:space:]ZX]' "/proc/$1/status" 2>/dev/null; }
leftovers() { cat "$work"/pid.* 2>/dev/null; }
cleanup() {
  for pid in $(leftovers); do kill -KILL "$pid" 2>/dev/null; done
  [ -n "$launcher" ] && kill -KILL "$launcher" 2>/dev/null
  rm -rf "$work"
}
trap cleanup EXIT

say() { echo "$*"; }
fail() { say "FAIL $*"; failures=$((failures + 1)); [ -f "$work/log" ] && sed 's/^/    | /' "$work/log"; }
now() { date +%s.%N; }

# begin STEPS [fault rank seconds]: starts four ranks and waits for their first sum.
begin() {
  rm -rf "$work"/*
  "${launch[@]}" -n 4 "$rank_program" "$work" "$limit" "$@" >"$work/log" 2>&1 &
  launcher=$!
  for _ in $(seq 300); do [ -f "$work/running" ] && return; sleep 0.1; done
  fail "the ranks did not start"
}
# end_within SECONDS SINCE: waits for the launcher; sets code and took.
end_within() {
  for _ in $(seq $(($1 * 20))); do kill -0 "$launcher" 2>/dev/null || break; sleep 0.05; done
  took=$(echo "$(now) - $2" | bc)
  if kill -0 "$launcher" 2>/dev/null; then fail "still running after $1 s"; kill -KILL "$launcher"; fi
  wait "$launcher"
  code=$?
  launcher=
  for pid in $(leftovers); do
    for _ in $(seq 200); do runs "$pid" || break; sleep 0.1; done  # one that was killed takes a moment to go
    if runs "$pid"; then fail "process $pid is left over"; kill -KILL "$pid"; fi
  done
}
expect_code() { [ "$code" = "$1" ] || fail "the launcher gave $code instead of $1"; }
expect_said() { grep -q "$1" "$work/log" || fail "nobody said '$1'"; }
expect_once() { [ "$(grep -c "$1" "$work/log")" = 1 ] || fail "'$1' was said $(grep -c "$1" "$work/log") times"; }
expect_culprit() {
  grep -q "\"code\":71,\"culprits\":\[$1\]" "$work/watchdog.json" 2>/dev/null || fail "watchdog.json does not name $1"
}

begin 100000
kill -STOP "$(cat "$work/pid.2")"; start=$(now)
end_within $((limit + slack)) "$start"
expect_code 71; expect_once "watchdog: nothing moved"; expect_said "Culprit: rank 2 (host .*no sign of life"; expect_culprit 2
for r in 0 1 3; do grep -q OPEN "$work/watchdog/rank$r.txt" || fail "rank $r left no report"; done
say "rank stopped: code $code after $took s (limit $limit s)"

begin 40 sleep 1 $((limit * 4)); start=$(now)
end_within $((limit + slack + 2)) "$start"
expect_code 71; expect_once "watchdog: nothing moved"; expect_said "Culprit: rank 1 (host .*waits for nobody"; expect_culprit 1
expect_said "reading a batch for step 20"
say "rank late: code $code after $took s"

begin 40 stuck 3 0; start=$(now)
end_within $((limit + slack + 2)) "$start"
expect_code 71; expect_once "watchdog: nothing moved"; expect_said "Culprit: rank 3 (host .*inside the transport"; expect_culprit 3
# Every rank leaves where its threads stand, and a script has the names.
for r in 0 3; do
  "$resolve" "$work/watchdog/rank$r.txt" >"$work/stacks.$r" 2>&1 || fail "the stacks of rank $r cannot be resolved"
  for thread in tw-progress tw-watchdog; do grep -q "^thread [0-9]* $thread, state S" "$work/stacks.$r" || fail "rank $r: no stack of $thread"; done
  # Open MPI has threads of its own, which block all signals.
  grep -qE "^thread ($(cat "$work/pid.$r") |[0-9]+ tw-).*does not answer" "$work/stacks.$r" && fail "a thread of rank $r has not answered"
done
for name in MPI_Recv StuckTransport::poll Progress::Core::drive; do
  grep -q "^  .*$name" "$work/stacks.3" || { fail "rank 3 is not seen in $name"; sed 's/^/    | /' "$work/stacks.3"; }
done
say "rank stuck inside MPI: code $code after $took s"

limit=6 begin 40 sleep 1 3.6; start=$(now)  # with two seconds to spare for a busy machine
end_within 20 "$start"
expect_code 0
grep -q watchdog "$work/log" && fail "a short stall was reported"
[ -e "$work/watchdog" ] && fail "reports are left after a clean end"
say "short stall: code $code after $took s"

# Waiting for a late peer is sleeping, with as much polling at its start as a rank with a core of its own does (docs/parallelism.md).
idle=10
limit=60 begin 4 idle 1 $idle; start=$(now)
end_within $((idle + 10)) "$start"
expect_code 0
for r in 0 2 3; do
  read -r waited cpu 2>/dev/null <"$work/idle.$r" || { fail "rank $r did not say what its wait cost"; continue; }
  [ "$(echo "$waited > $idle - 1" | bc)" = 1 ] || fail "rank $r waited $waited s instead of $idle"
  [ "$(echo "$cpu < 0.2" | bc)" = 1 ] || fail "rank $r took $cpu s of CPU for a wait of $waited s"
  say "rank $r idle: $cpu s of CPU in $waited s"
done

begin 100
# All at once: one that runs on would find the others silent.
mapfile -t pids < <(leftovers)
kill -STOP "${pids[@]}"
sleep $((limit * 2))
kill -CONT "${pids[@]}"
end_within 20 "$(now)"
expect_code 0
say "all suspended for twice the limit: code $code"

begin 100000
kill -KILL "$(cat "$work/pid.3")"; start=$(now)
end_within 20 "$start"
[ "$code" = 9 ] || [ "$code" = 137 ] || fail "the launcher gave $code for a killed rank"
say "rank killed: code $code after $took s"

[ "$failures" = 0 ] && say "all as expected"
exit $((failures > 0))
