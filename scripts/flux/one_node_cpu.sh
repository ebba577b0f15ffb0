#!/bin/bash
# flux: --job-name=thinwire
# flux: --nodes=1
# flux: --exclusive
# flux: --time-limit=4h
# flux: --signal=USR1@2m
# flux: --output=thinwire-{{id}}.out
# Trains on the cores of one node under Flux, in as many jobs as it takes.
#   flux batch [options] scripts/flux/one_node_cpu.sh --config configs/gpt2_124m.json [key=value ...]
# Options of flux batch win over the lines above (--queue, --bank). The script runs in a Flux instance of its own, made of the
# job's node; `flux run` inside it starts THINWIRE_RANKS ranks (8 unless said) with their share of its cores, bound to them.
# Two minutes before the limit Flux signals the jobs inside and, from version 0.74 on, this script: the ranks get USR1 from Flux
# itself, so the script only takes note. They finish their step, save and leave.
# Flux cannot requeue a job: when status.json says that the run may go on, the script submits itself to the enclosing instance
# (flux --parent batch). The new job has the options of the lines above; for others, copy the script, change its lines, and set
# THINWIRE_SCRIPT to the copy. A run that failed for good is not submitted again, nor one whose last three jobs made no new step.
# Flux has no job arrays either: `scripts/sweep` with launcher flux submits this script once per point.
# What else can be set (modules, container, site file): the head of scripts/batch_common.sh.
cd "${THINWIRE_ROOT:-.}" || exit 78
. "${THINWIRE_SHARE:-.}/scripts/batch_common.sh" || exit 78

tw_begin flux "${THINWIRE_SCRIPT:-scripts/flux/one_node_cpu.sh}" "$@"
ranks=${THINWIRE_RANKS:-8}
tw_check "$ranks"
tw_launch flux run --nodes=1 --ntasks="$ranks" --cores-per-task="$(tw_flux_cores "$ranks")" -o cpu-affinity=per-task
tw_end
