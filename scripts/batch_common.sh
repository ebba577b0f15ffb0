# shellcheck shell=bash
# What all batch scripts share: arguments, site hooks, the walltime signal, and whether the run goes back into the queue.
#
# A script sources this file, then calls
#   tw_begin SYSTEM SCRIPT "$@"     reads the arguments and the site's hooks, installs the traps; SYSTEM: slurm | slurm_chain | lsf |
#                                   lsf_chain | pbs | flux; SCRIPT: the file to submit when the system cannot queue a job again
#   tw_begin_element ...            the same for one line of a list, in the array scripts
#   tw_run_slurm, tw_run_lsf, tw_run_pbs   do the rest with the launcher of that system, by way of
#     tw_check                      asks train where the run is and whether it would run
#     tw_launch LAUNCHER OPTION ... runs it and waits for its end, passing signals on
#     tw_end                        decides from status.json: finished, failed for good, or once more; exits
#
# What a person may set (in the environment when submitting, or in the site file):
#   THINWIRE_ARGS       arguments of train where the batch system passes none to a script (LSF, PBS): words, no quoting
#   THINWIRE_ARGS_FILE  the same, one argument per line
#   THINWIRE_SITE       a shell file of the site, sourced first: modules, paths, variables
#   THINWIRE_MODULES    environment modules to load, words
#   THINWIRE_CONTAINER  image.sif (apptainer or singularity), or a whole command to put before train ("podman run ...")
#   THINWIRE_TRAIN      the program; ./train unless said, build-cuda/train in the GPU scripts
#   THINWIRE_ROOT       the folder of the run, when not submitted from there; in a source tree its root
#   THINWIRE_SHARE      of an installed Thinwire, what `thinwire where` prints: scripts, configurations and programs are then there
#   THINWIRE_LAUNCHER   srun | mpirun | jsrun, where a script knows several
#   THINWIRE_PMI        what srun is given as --mpi: pmi2 unless said; pmix for Open MPI, cray_shasta for Cray MPICH
#   THINWIRE_RANKS      number of ranks, where it is not the number of slots
#   THINWIRE_LOG        a file that gets the output instead; %d in it is the folder that holds the run directory
#   THINWIRE_CHECK      0: do not ask train on this node before the ranks are started; the arguments must then have run_dir=DIR
#   THINWIRE_FORWARD    0: this shell does not pass the walltime signal on to the launcher (see tw_on_signal)
#
# Exit codes: those of train (docs/programs.md); 75 stopped and not queued again; 99 (LSF only, see -Q) queue me again.
# The exit code of the launcher is not used for decisions: it may be the same for a killed rank, a full disk and a lost node.
set -uo pipefail

tw_most_without=3 # jobs in a row without progress (tw_close_cycle); then the run is not queued again

tw_say() { printf 'thinwire %s: %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$*"; }

tw_fail() { # CODE MESSAGE
  printf 'error: %s: %s\n' "${tw_script:-batch_common.sh}" "$2" >&2
  exit "$1"
}

# Value of a key of a flat JSON object, as status.json is; nothing when absent. (Inside a text a quotation mark has a backslash
# before it, so a message cannot be taken for a key.)
tw_json() { # KEY FILE
  [ -r "$2" ] || return 0
  grep -oE "\"$1\"[[:space:]]*:[[:space:]]*(\"[^\"]*\"|[^,}[:space:]]+)" "$2" | sed 's/^[^:]*:[[:space:]]*//; s/^"//; s/"$//; q'
}

# The file of that name here, else the one that ships with an installed Thinwire.
tw_shipped() { # PATH
  if [ ! -r "$1" ] && [ -r "${THINWIRE_SHARE:-.}/$1" ]; then echo "${THINWIRE_SHARE:-.}/$1"; else echo "$1"; fi
}

tw_number() { case $1 in '' | *[!0-9]*) echo 0 ;; *) echo "$1" ;; esac; }

tw_load_site() {
  local module image
  set +u # what sites source reads variables that nobody has set: conda, oneAPI, Lmod
  if [ -n "${THINWIRE_SITE:-}" ]; then
    # shellcheck source=/dev/null
    . "$THINWIRE_SITE" || tw_fail 78 "THINWIRE_SITE: cannot source $THINWIRE_SITE"
  fi
  if [ -n "${THINWIRE_MODULES:-}" ]; then
    # A batch shell is no login shell: the function `module` is often missing.
    if ! type module >/dev/null 2>&1; then
      for module in /etc/profile.d/lmod.sh /etc/profile.d/modules.sh "${MODULESHOME:-/usr/share/modules}/init/bash"; do
        # shellcheck source=/dev/null
        if [ -r "$module" ]; then . "$module" && break; fi
      done
    fi
    type module >/dev/null 2>&1 || tw_fail 78 "THINWIRE_MODULES is set but there is no command module; source it in THINWIRE_SITE"
    for module in $THINWIRE_MODULES; do
      module load "$module" || tw_fail 78 "module load $module failed"
    done
  fi
  set -u
  tw_container=()
  case ${THINWIRE_CONTAINER:-} in
    '') ;;
    *' '*) read -r -a tw_container <<<"$THINWIRE_CONTAINER" ;;
    *)
      image=$(command -v apptainer || command -v singularity) || tw_fail 78 "THINWIRE_CONTAINER: neither apptainer nor singularity is here"
      tw_container=("$image" exec)
      # Without --nv the container sees no driver.
      [ "$tw_device" != cuda ] || tw_container+=(--nv)
      tw_container+=("$THINWIRE_CONTAINER")
      ;;
  esac
}

# The run directory where the arguments say it outright, else nothing: that must do until train is asked (tw_check), and where it
# cannot be. A flag wins over key=value, as in train.
tw_find_run_dir() {
  local word before='' given='' flag=''
  for word in "${tw_args[@]}"; do
    case $word in
      run[-_]dir=*) given=${word#*=} ;;
      --run[-_]dir=*) flag=${word#*=} ;;
    esac
    [[ $before != --run[-_]dir ]] || flag=$word
    before=$word
  done
  tw_run_dir=${flag:-$given}
}

# The files that lie in the run directory, and the log beside it.
tw_use_run_dir() {
  local folder log
  tw_status=$tw_run_dir/status.json tw_cycles=$tw_run_dir/batch_cycles.json tw_saves=$tw_run_dir/checkpoints
  [ -n "${THINWIRE_LOG:-}" ] || return 0
  folder=$(dirname "$tw_run_dir") log=${THINWIRE_LOG//%d/"$folder"} # in quotes: bash 5.2 takes a bare & for what was replaced
  exec >>"$log" 2>&1
}

# Value of a text key in what `train --print-config` says.
tw_resolved() { # KEY TEXT
  sed -n "s/^  \"$1\": \"\(.*\)\",\{0,1\}$/\1/;T;s/\\\\\(.\)/\1/g;p" <<<"$2"
}

tw_begin() { # SYSTEM SCRIPT [ARGUMENT ...]
  tw_system=$1 tw_script=$2
  shift 2
  # First of all: a signal may come at any time, and without a trap USR1 ends bash.
  tw_asked='' tw_pid='' tw_interrupted='' tw_timer=''
  trap 'tw_on_signal USR1' USR1
  trap 'tw_on_signal TERM' TERM
  trap 'tw_on_signal INT' INT
  trap '' USR2 # the second warning of some LSF versions; Hydra's mpirun would die of it and leave its ranks behind

  tw_script=$(tw_shipped "$tw_script")
  tw_args=()
  if [ $# -gt 0 ]; then
    tw_args=("$@")
  elif [ -n "${THINWIRE_ARGS_FILE:-}" ]; then
    mapfile -t tw_args <"$THINWIRE_ARGS_FILE" || tw_fail 78 "THINWIRE_ARGS_FILE: cannot read $THINWIRE_ARGS_FILE"
    tw_args=("${tw_args[@]%$'\r'}") # editors of Windows
  elif [ -n "${THINWIRE_ARGS:-}" ]; then
    read -r -d '' -a tw_args <<<"$THINWIRE_ARGS" # of all its lines
  fi
  [ ${#tw_args[@]} -gt 0 ] || tw_fail 64 "no arguments for train: give them to the script, or in THINWIRE_ARGS (example: --config configs/gpt2_tiny.json)"
  tw_device=${tw_device:-cpu}
  tw_find_run_dir
  [ -z "$tw_run_dir" ] || tw_use_run_dir
  tw_load_site
  tw_find_job
  case "${tw_args[*]}" in *device=*) ;; *) [ "$tw_device" = cpu ] || tw_args+=("device=$tw_device") ;; esac
  tw_train=${THINWIRE_TRAIN:-}
  if [ -z "$tw_train" ]; then
    if [ "$tw_device" = cuda ]; then tw_train=./build-cuda/train; else tw_train=./train; fi
    [ -x "$tw_train" ] || [ -z "${THINWIRE_SHARE:-}" ] || tw_train=$THINWIRE_SHARE/build/train
  fi
  # In a container the program may live where this shell cannot see it.
  [ ${#tw_container[@]} -gt 0 ] || [ -x "$tw_train" ] || tw_fail 78 "no program $tw_train: build it, or set THINWIRE_TRAIN (directory $PWD)"
}

# The name by which the batch system knows this job.
tw_find_job() {
  tw_job=
  case $tw_system in
    slurm*) tw_job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID} tw_job=${tw_job:-${SLURM_JOB_ID:-}} ;;
    lsf*) if [ "${LSB_JOBINDEX:-0}" -gt 0 ]; then tw_job="${LSB_JOBID}[$LSB_JOBINDEX]"; else tw_job=${LSB_JOBID:-}; fi ;;
    pbs) tw_job=${PBS_JOBID:-} ;;
    flux) tw_job=$(flux getattr jobid 2>/dev/null) ;;
  esac
  [ -n "$tw_job" ] || tw_fail 64 "this is no job of ${tw_system%_chain}: submit the script, as its head says"
}

# One run of a list: a line of words, or of fields between tabs where a path has blanks. INDEX counts from FIRST.
tw_begin_element() { # SYSTEM SCRIPT LIST INDEX FIRST
  local line words
  tw_script=$(tw_shipped "$2") tw_list=$3 tw_index=$4
  [ -n "$3" ] || tw_fail 64 "no list of runs: give a file that holds the arguments of one run per line"
  [ "${4:--1}" -ge "$5" ] || tw_fail 64 "not an element of an array: submit with an array of indices (see the head of $2)"
  [ -r "$3" ] || tw_fail 78 "cannot read the list of runs $3 (directory $PWD)"
  line=$(sed -n "$(($4 - $5 + 1))p" "$3") line=${line%$'\r'}
  [ -n "$line" ] || tw_fail 78 "$3 has no line for index $4: give the array as many indices as the list has lines, from $5"
  case $line in
    *$'\t'*) IFS=$'\t' read -r -a words <<<"$line" ;;
    *) read -r -a words <<<"$line" ;;
  esac
  tw_begin "$1" "$2" "${words[@]}"
}

# ---- signals -------------------------------------------------------------------------------------------------------------------

# bash runs a trap only when its foreground command has ended: so launchers run in the background, and `wait` is what is interrupted.
tw_on_signal() { # NAME
  tw_interrupted=1
  [ -n "$tw_asked" ] || tw_asked=$1
  if [ -z "$tw_pid" ]; then
    tw_say "$1 before the launcher was started"
    return
  fi
  case ${THINWIRE_FORWARD:-1}:$1 in
    0:USR1) tw_say "$1: the ranks have been asked to save and leave" ;;
    # Slurm's --signal=B:USR1 reaches this shell alone; LSF signals the whole process group and Flux every job inside the
    # allocation, so that the launcher has it already: ranks take what comes twice within two seconds as one wish. Launchers
    # hand USR1 on to every rank; TERM would make srun kill them.
    *:USR1)
      tw_say "$1: asking the ranks to save and leave"
      kill -USR1 "$tw_pid" 2>/dev/null
      ;;
    # TERM is cancellation or preemption: the batch system sends it to all processes itself and queues again itself, if at all.
    *) tw_say "$1: the batch system ends this job" ;;
  esac
}

# Where the system has no warning before the walltime (PBS): a clock of our own. SECONDS_FROM_NOW <= 0: none.
tw_warn_after() { # SECONDS_FROM_NOW
  [ "$1" -gt 0 ] || return 0
  (
    trap 'kill "$nap" 2>/dev/null; exit 0' TERM
    trap '' USR1
    sleep "$1" &
    nap=$!
    wait "$nap" && kill -USR1 $$
  ) &
  tw_timer=$!
}

# "[[days:]hours:]minutes:seconds" or seconds, as seconds.
tw_seconds() { # TEXT
  awk -F: '{ n = 0; unit = 1; for (i = NF; i > 0; --i) { n += $i * unit; unit *= (unit == 3600 ? 24 : 60) } print n }' <<<"$1"
}

# ---- the run -------------------------------------------------------------------------------------------------------------------

# Tells whether status.json was written by another process since: that of another job in this run directory does not count.
tw_fingerprint() {
  local key
  [ -e "$tw_status" ] || echo none
  for key in started pid host; do tw_json "$key" "$tw_status"; done
}

# The control group of this job as far as it can be seen from this shell: its folder, and how often the kernel has killed in it for
# want of memory. Slurm's steps lie beside the shell, under the job. Nothing where there is no such group.
tw_memory_group() {
  local controllers path folder kills
  while IFS=: read -r _ controllers path; do
    path=$(sed -E 's#(/job_[0-9]+)/.*#\1#' <<<"$path")
    case ,$controllers, in
      ,,) folder=/sys/fs/cgroup$path ;;
      *,memory,*) folder=/sys/fs/cgroup/$controllers$path ;;
      *) continue ;;
    esac
    kills=$(cat "$folder/memory.events" "$folder/memory.oom_control" 2>/dev/null | sed -n 's/^oom_kill //p')
    [ -z "$kills" ] || { echo "$kills $folder"; return; }
  done 2>/dev/null </proc/self/cgroup
}

tw_launch() { # LAUNCHER [OPTION ...]
  tw_code=75
  tw_before=$(tw_fingerprint) tw_kills=$(tw_memory_group)
  [ -z "$tw_asked" ] || return 0
  tw_say "starting: $* ${tw_container[*]} $tw_train ${tw_args[*]}"
  "$@" "${tw_container[@]}" "$tw_train" "${tw_args[@]}" </dev/null &
  tw_pid=$!
  while :; do
    tw_interrupted=
    wait "$tw_pid"
    tw_code=$?
    # A trap interrupted `wait`: the launcher still runs, or it has ended and bash keeps its exit code.
    [ -n "$tw_interrupted" ] || break
    kill -0 "$tw_pid" 2>/dev/null || { wait "$tw_pid"; tw_code=$?; break; }
  done
}

# Asks train, before ranks are started, where the run is (it alone knows all ways to say so) and whether it would run: a launcher
# may lose the exit code 78 (srun reports 137), and a refusal should not cost a start on all nodes. After any other answer the run
# is started. A warning to the whole process group must not end the one that is asked.
tw_check() { # RANKS
  local said='' config='' code=0 given=$tw_run_dir saves ask=("${tw_container[@]}" "$tw_train" "${tw_args[@]}" --dry-run --ranks "$1")
  if [ "${THINWIRE_CHECK:-1}" = 1 ]; then
    config=$(trap '' USR1; "${ask[@]}" --print-config </dev/null 2>/dev/null)
    said=$(trap '' USR1; "${ask[@]}" </dev/null 2>&1 >/dev/null)
    code=$?
    tw_run_dir=$(tw_resolved run_dir "$config") tw_run_dir=${tw_run_dir:-$given}
  fi
  if [ -n "$tw_run_dir" ]; then
    tw_use_run_dir
    saves=$(tw_resolved save "$config") tw_saves=${saves:-$tw_saves}
    tw_open_cycle
  elif [ "$code" -ne 78 ]; then
    printf '%s\n' "$said" >&2
    tw_fail 78 "train cannot be asked here where the run is: give run_dir=DIR among its arguments"
  fi
  [ "$code" -eq 78 ] || return 0
  printf '%s\n' "$said" >&2
  tw_say "failed, not queued again: train refuses this configuration (directory $PWD)"
  [ -z "$tw_run_dir" ] || tw_write_cycles false
  exit 78
}

tw_run_slurm() {
  local ranks=${THINWIRE_RANKS:-${SLURM_NTASKS:-}} cores=${SLURM_CPUS_PER_TASK:-1} see=() bind=()
  [ -n "$ranks" ] || tw_fail 78 "SLURM_NTASKS is not set: give sbatch --ntasks or --ntasks-per-node, or set THINWIRE_RANKS"
  tw_check "$ranks"
  tw_submit_successor
  # With GPUs every rank sees all of its node, and Hydra leaves the cores to the ranks.
  if [ "$tw_device" = cuda ]; then see=(--gpu-bind=none); else bind=(-bind-to "core:$cores"); fi
  case ${THINWIRE_LAUNCHER:-srun} in
    # srun does not take --cpus-per-task over from the job by itself any more.
    srun) tw_launch srun --mpi="${THINWIRE_PMI:-pmi2}" --ntasks="$ranks" --cpus-per-task="$cores" --cpu-bind=cores "${see[@]}" \
      --distribution=block:block --kill-on-bad-exit=1 ;;
    mpirun) tw_launch mpirun -n "$ranks" "${bind[@]}" ;;
    *) tw_fail 78 "THINWIRE_LAUNCHER=$THINWIRE_LAUNCHER: known here are srun and mpirun" ;;
  esac
  tw_end
}

tw_run_lsf() { # RANKS [OPTION of mpirun ...]
  tw_check "$1"
  tw_submit_successor
  tw_launch mpirun -n "$@"
  tw_end
}

tw_run_pbs() { # RANKS [OPTION of mpirun ...]
  tw_check "$1"
  tw_warn_after "$(tw_pbs_seconds_left)"
  tw_launch mpirun -f "$PBS_NODEFILE" -n "$@"
  tw_end
}

# Hosts of an allocation by CSM: the first that LSF lists is the launch node, which takes no ranks.
tw_lsf_nodes() {
  local hosts
  hosts=$(sort -u "${LSB_DJOB_HOSTFILE:?jsrun needs an allocation by LSF}" | wc -l)
  echo $((hosts > 1 ? hosts - 1 : 1))
}

# Seconds until the warning: THINWIRE_WARN (120) before the walltime, or half of a very short one.
tw_pbs_seconds_left() {
  local limit warn=${THINWIRE_WARN:-120}
  limit=$(qstat -f "$PBS_JOBID" 2>/dev/null | sed -n 's/^ *Resource_List.walltime = *//p')
  [ -n "$limit" ] || { tw_say "warning: qstat -f shows no walltime; nothing will be saved before it" >&2; echo 0; return; }
  limit=$(($(tw_seconds "$limit") - SECONDS)) # asking train took its time
  if [ $((limit - warn)) -gt $((limit / 2)) ]; then echo $((limit - warn)); else echo $((limit / 2)); fi
}

# Cores for each of RANKS ranks in this Flux instance.
tw_flux_cores() { # RANKS
  local cores
  cores=$(flux resource list -s up -no '{ncores}')
  echo $((cores >= $1 ? cores / $1 : 1))
}

# ---- cycles: how many jobs the run has taken, and whether each made progress --------------------------------------------------------

tw_write_cycles() { # OPEN
  mkdir -p "$tw_run_dir" || tw_fail 73 "cannot make $tw_run_dir"
  { printf '{\n "cycles": %d,\n "without_progress": %d,\n "step": %d,\n "saved": %d,\n "open": %s,\n "job": "%s"\n}\n' \
    "$tw_cycle" "$tw_without" "$tw_step" "$tw_saved" "$1" "$tw_job" >"$tw_cycles.tmp" && mv "$tw_cycles.tmp" "$tw_cycles"; } ||
    tw_say "warning: cannot write $tw_cycles; endless cycles are not noticed"
}

tw_saved_step() { tw_number "$(tw_json step "$tw_saves/latest.json")"; }

# Progress is a larger step than at the last one, or that another step was saved: a run may begin anew in its directory, or fall
# back to an older checkpoint. Called once per cycle, at its end, or at the next start when it had no end.
tw_close_cycle() {
  local step saved
  step=$(tw_number "$(tw_json step "$tw_status")") saved=$(tw_saved_step)
  if [ "$step" -gt "$tw_step" ] || [ "$saved" -ne "$tw_saved" ]; then tw_without=0 tw_step=$step; else tw_without=$((tw_without + 1)); fi
  tw_saved=$saved
}

tw_open_cycle() {
  local state
  tw_cycle=$(tw_number "$(tw_json cycles "$tw_cycles")")
  tw_without=$(tw_number "$(tw_json without_progress "$tw_cycles")")
  tw_step=$(tw_number "$(tw_json step "$tw_cycles")")
  tw_saved=$(tw_json saved "$tw_cycles") tw_saved=$(tw_number "${tw_saved:-$(tw_saved_step)}") # older files do not have it
  state=$(tw_json state "$tw_status")
  if [ "$state" = finished ] && [[ $tw_system == *_chain ]]; then
    tw_say "$tw_run_dir is finished; nothing to do"
    exit 0
  fi
  if [ "$(tw_json open "$tw_cycles")" = true ]; then
    tw_close_cycle # the last one was killed with its shell
    [ "$tw_without" -lt "$tw_most_without" ] || tw_give_up
  fi
  tw_cycle=$((tw_cycle + 1))
  tw_write_cycles true
  tw_say "cycle $tw_cycle of $tw_run_dir, from step $(tw_number "$(tw_json step "$tw_status")"), job $tw_job on ${HOSTNAME:-?}"
}

tw_give_up() {
  tw_write_cycles false
  tw_say "not queued again: $tw_without cycles in a row ended at step $tw_step, without a single new one; see $tw_run_dir/log.txt. Submit again by hand when it is mended"
  exit 75
}

# ---- the decision ----------------------------------------------------------------------------------------------------------------

# Sets tw_verdict: finished | again | failed | cancelled, tw_exit and tw_why.
tw_decide() {
  local state code reason folder limit
  state=$(tw_json state "$tw_status") code=$(tw_json code "$tw_status") reason=$(tw_json reason "$tw_status")
  tw_verdict=failed tw_exit=$tw_code tw_why=
  [ "$tw_exit" -ne 0 ] || tw_exit=70
  if [ "$tw_asked" = TERM ] || [ "$tw_asked" = INT ]; then
    tw_verdict=cancelled tw_exit=75 tw_why="ended by the batch system ($tw_asked), state ${state:-unknown}"
  elif [ "$tw_before" = "$(tw_fingerprint)" ]; then
    # status.json, if any, is that of an earlier cycle or of another job. A refused configuration ends here, too: it never gets as far.
    tw_why="the run did not begin, launcher ended with code $tw_code; its message is above"
    case $tw_code in
      0 | 64 | 65 | 70 | 73 | 74 | 76 | 78 | 126 | 127) ;;
      71) tw_verdict=again tw_exit=75 ;; # MPI failed before there was a run directory to say so in
      *)
        if [ "$tw_asked" = USR1 ]; then
          tw_verdict=again tw_why="asked to stop before the run began"
        elif [ -e "$tw_status" ] && [ "${THINWIRE_CHECK:-1}" = 1 ] && [ "$(tw_memory_group)" = "$tw_kills" ]; then
          # A rank was killed, or its node lost, while it started. What has begun before, and is not refused, may well begin again.
          tw_verdict=again tw_exit=75
        fi
        ;;
    esac
  elif [ "$state" = finished ]; then
    tw_verdict=finished tw_exit=0
  elif [ "$(tw_json requeue "$tw_status")" = true ]; then
    tw_verdict=again tw_exit=75 tw_why="$reason at step $(tw_json step "$tw_status")"
  elif [ "$state" = running ] && [ "$(tw_memory_group)" != "$tw_kills" ]; then
    # As with code 74: the same would happen again. Where several ranks ran, the parent process of the killed one has said more.
    folder=${tw_kills#* } limit=$(cat "$folder/memory.max" "$folder/memory.limit_in_bytes" 2>/dev/null)
    tw_exit=74 tw_why="killed by the kernel for want of memory: $folder may use ${limit:-?} bytes; --dry-run prints the plan"
  elif [ "$state" = running ]; then
    tw_verdict=again tw_exit=75 tw_why="ended without a word (killed, lost its node, out of memory?)"
  else
    [ -z "$code" ] || [ "$code" = null ] || tw_exit=$code
    tw_why="$reason (code $tw_exit): it would fail again"
  fi
}

tw_end() {
  [ -z "$tw_timer" ] || kill "$tw_timer" 2>/dev/null
  tw_decide
  [ "$tw_exit" -ne 99 ] || tw_exit=70 # LSF would queue the job again
  case $tw_verdict in
    finished) tw_say "finished: $tw_run_dir, report in $tw_run_dir/report.html" ;;
    failed) tw_say "failed, not queued again: $tw_why" ;;
    cancelled) tw_say "not queued again by this script: $tw_why" ;;
  esac
  tw_close_cycle
  tw_write_cycles false
  if [ "$tw_verdict" != again ]; then
    tw_drop_successor
    exit "$tw_exit"
  fi
  if [ "$tw_without" -ge "$tw_most_without" ]; then
    tw_drop_successor
    tw_give_up
  fi
  tw_say "once more: $tw_why ($tw_without cycles without progress)"
  tw_queue_again
}

# The chain scripts submit their successor before they begin, so that it is there even when they are killed with the node.
tw_successor='' tw_cluster=''
tw_submit_successor() {
  local limit qos output pair name options=()
  [[ $tw_system == *_chain ]] || return 0
  case $tw_system in
    slurm_chain)
      limit=$(squeue -h -j "$SLURM_JOB_ID" -o %l) qos=$(squeue -h -j "$SLURM_JOB_ID" -o %q) output=$(scontrol show -o job "$SLURM_JOB_ID" |
        sed -n 's/.* StdOut=//;T;s/ [A-Z][A-Za-z]*=.*//;s/ *$//;p') # a path may have blanks
      options=(--job-name="$SLURM_JOB_NAME" --nodes="$SLURM_JOB_NUM_NODES" --partition="$SLURM_JOB_PARTITION")
      [ -z "$limit" ] || options+=(--time="$limit")
      [[ ${qos:-(null)} = *null* ]] || options+=(--qos="$qos") # (null): a Slurm without accounts
      [ -z "$output" ] || options+=(--output="$output")
      for pair in NTASKS_PER_NODE:ntasks-per-node CPUS_PER_TASK:cpus-per-task GPUS_PER_NODE:gpus-per-node MEM_PER_NODE:mem MEM_PER_CPU:mem-per-cpu JOB_ACCOUNT:account; do
        name=SLURM_${pair%:*}
        [ -z "${!name:-}" ] || options+=("--${pair#*:}=${!name}")
      done
      tw_successor=$(sbatch --parsable --dependency=singleton "${options[@]}" "$tw_script" "${tw_args[@]}")
      # JOB;CLUSTER where there are several
      [[ $tw_successor != *';'* ]] || tw_cluster=${tw_successor#*;} tw_successor=${tw_successor%%;*} ;;
    lsf_chain) tw_successor=$(bsub -w "ended($LSB_JOBID)" <"$tw_script" | sed -n 's/^Job <\([0-9]*\)>.*/\1/p') ;;
  esac
  if [ -n "$tw_successor" ]; then
    tw_say "job $tw_successor waits for the end of this one"
  else
    tw_say "warning: no successor could be submitted; the chain ends with this job"
  fi
}

tw_drop_successor() {
  [ -n "$tw_successor" ] || return 0
  case $tw_system in
    slurm_chain) scancel ${tw_cluster:+--clusters="$tw_cluster"} "$tw_successor" ;;
    lsf_chain) bkill "$tw_successor" ;;
  esac || tw_say "warning: could not cancel the successor $tw_successor; it will find nothing to do"
}

tw_queue_again() {
  local list=$tw_run_dir/batch_args id
  case $tw_system in
    slurm)
      # The same job id and the same output file; Slurm ends this script. An element is named JOB_INDEX: the job id of one of them is
      # that of the array, too, and all its neighbours would be stopped and begin again.
      if scontrol requeue "$tw_job"; then exit 75; fi
      tw_say "Slurm refuses to queue the job again (site setting?): submit it again by hand, or use scripts/slurm/chain.sh"
      exit 75
      ;;
    *_chain)
      if [ -n "$tw_successor" ]; then tw_say "job $tw_successor goes on"; else tw_say "there is no successor: submit again by hand"; fi
      exit 75
      ;;
    lsf) exit 99 ;; # what the directive -Q names
    pbs)
      # qrerun is for operators: a new job takes over. Its arguments travel in a file, since -v does not take commas.
      if [ -n "${tw_list:-}" ]; then
        list=$(tw_pair THINWIRE_LIST "$tw_list"),THINWIRE_INDEX=$tw_index
      else
        printf '%s\n' "${tw_args[@]}" >"$list"
        list=$(tw_pair THINWIRE_ARGS_FILE "$(tw_absolute "$list")")
      fi
      id=$(qsub -v "$(tw_pair THINWIRE_ROOT "$PWD"),$list$(tw_hooks)" "$tw_script")
      ;;
    flux)
      # Inside the allocation `flux` means its own instance; --parent is the one that queues jobs.
      id=$(flux --parent batch "$tw_script" "${tw_args[@]}")
      ;;
  esac
  # shellcheck disable=SC2181 # the status of either assignment above
  if [ $? -eq 0 ] && [ -n "$id" ]; then
    tw_job=$id
    tw_write_cycles false # `scripts/sweep status` follows the new job
    tw_say "job $id goes on"
  else
    tw_say "could not submit $tw_script again: do it by hand"
  fi
  exit 75
}

tw_absolute() { case $1 in /*) echo "$1" ;; *) echo "$PWD/$1" ;; esac; }

# What -v of qsub takes: a pair with commas in quotes of one kind, its value in the other.
tw_pair() { # NAME VALUE
  case $2 in
    *,*) printf '%s' "\"$1='$2'\"" ;;
    *) printf '%s' "$1=$2" ;;
  esac
}

# The hooks that were set, for a job that does not inherit the environment.
tw_hooks() {
  local name
  for name in THINWIRE_SHARE THINWIRE_SITE THINWIRE_MODULES THINWIRE_CONTAINER THINWIRE_TRAIN THINWIRE_LAUNCHER THINWIRE_PMI THINWIRE_RANKS THINWIRE_LOG THINWIRE_CHECK THINWIRE_GPUS THINWIRE_SCRIPT THINWIRE_WARN THINWIRE_FORWARD; do
    [ -z "${!name:-}" ] || printf ',%s' "$(tw_pair "$name" "${!name}")"
  done
}
