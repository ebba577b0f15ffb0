#!/usr/bin/env python3
"""The faults that a run meets, each with the tests that provoke it, and the page that shows what came out.

  tests/train/fault_matrix.py run [--only 1 2 ...]   runs the tests of the rows and keeps what they say in docs/results/faults_cells.jsonl
  tests/train/fault_matrix.py page                   writes docs/results/faults.md from those cells
  tests/train/fault_matrix.py check                  every row has a test that exists and has passed, and the page is that of its cells

A test may print `fault: {"row": 20, "seconds": 5.1, "code": 71}`: how long it took until the job had ended, and with which code. Several such
lines of a row are shown as a range. THINWIRE_BUILD: where the programs are (default build).
"""
import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("THINWIRE_BUILD", ROOT / "build")).resolve()
CELLS, PAGE = ROOT / "docs/results/faults_cells.jsonl", ROOT / "docs/results/faults.md"


def runs(file, *names):
    """Cases of a Python test of whole runs."""
    return [("python", f"tests/train/{file}.py", name) for name in names]


def cases(program, source, *names):
    """Cases of a GoogleTest program; source: the file that holds them."""
    return [("gtest", f"{program}:{source}", name) for name in names]


# number, fault, how it is provoked, what happens, exit code, what is lost, tests
ROWS = [
    (1, "rank killed in a step", "SIGKILL of a rank", "the launcher ends the job; the next start resumes, bit for bit", "launcher's (9)", "steps since the checkpoint",
     runs("ranks_test", "Ranks.test_a_killed_rank_ends_the_job_at_once_and_the_restart_resumes")),
    (2, "rank killed in a save", "SIGKILL at each of 14 points of a save", "half a checkpoint is never taken for one; the one before loads", "launcher's (9)", "steps since the checkpoint",
     cases("checkpoint_tests", "tests/checkpoint/store_crash_test.cpp", "StoreCrash.KilledAtEverySavePoint")),
    (3, "torn write, error of the disk", "an error at each point of a save, a flush that fails with EIO", "the save fails, the checkpoint before stays", "74", "nothing saved before",
     cases("checkpoint_tests", "tests/checkpoint/store_crash_test.cpp", "StoreCrash.ErrorAtEverySavePoint")
     + runs("saves_test", "Storage.test_a_flush_that_fails_fails_the_save_and_keeps_the_older_one")),
    (4, "checkpoint cut short", "every interesting length", "refused by file and size; the checkpoint before loads, 65 if there is none", "65", "steps since that checkpoint",
     cases("checkpoint_tests", "tests/checkpoint/store_corruption_test.cpp", "StoreCorruption.EveryInterestingTruncationIsFound")
     + runs("refusal_test", "Refusals.test_newest_damaged_falls_back")),
    (5, "bit of a checkpoint flipped", "2,000 random bits", "all found when the checkpoint is verified", "65", "steps since the checkpoint before",
     cases("checkpoint_tests", "tests/checkpoint/store_corruption_test.cpp", "StoreCorruption.TwoThousandFlippedBitsAreAllFound")),
    (6, "hostile checkpoint", "attacks on safetensors, mutated files", "refused, no crash, no memory for what is not there", "65", "nothing",
     cases("checkpoint_tests", "tests/checkpoint/safetensors_test.cpp", "Safetensors.HostileFilesGetTheReferenceVerdict", "Safetensors.MutatedFilesNeverCrash")),
    (7, "disk full", "a small file system below the checkpoints", "the save fails cleanly, older checkpoints stay; the last save has to succeed", "74", "nothing saved before",
     cases("checkpoint_tests", "tests/checkpoint/store_disk_full_test.cpp", "StoreDiskFull.FullFileSystemFailsCleanlyAndKeepsTheOldGenerations")
     + runs("refusal_test", "FullDisks.test_checkpoints_do_not_fit")),
    (8, "limit of file sizes", "RLIMIT_FSIZE", "as a full disk, not a signal", "74", "nothing saved before",
     cases("checkpoint_tests", "tests/checkpoint/store_disk_full_test.cpp", "StoreDiskFull.FileSizeLimitFailsCleanlyAndKeepsTheOldGeneration")),
    (9, "metrics and logs do not fit", "a full file system below the run directory", "one warning, training goes on", "0", "lines of metrics",
     runs("refusal_test", "FullDisks.test_metrics_do_not_fit")),
    (10, "SIGTERM, SIGUSR1, SIGINT", "to mpirun and to one rank, at many moments", "the step ends, a checkpoint is saved; a second signal leaves at once", "75", "nothing; second: steps since the checkpoint",
     runs("ranks_test", "Ranks.test_a_signal_to_mpirun_saves_and_leaves_75_and_the_next_life_goes_on", "Ranks.test_a_signal_to_one_rank_stops_all")
     + runs("signal_test", "Signals.test_second_signal_leaves_at_once")),
    (11, "job queued again", "a real Slurm on one machine, stand-ins of four batch systems", "resumes in the same directory; three jobs without progress are enough", "75", "nothing",
     [("ctest", "tests/sweep/batch_stand_ins_test.py", "batch_stand_ins_test"), ("ctest", "tests/sweep/slurm_test.py", "slurm_test")]),
    (12, "damaged data", "token files cut, flipped and shrunk, ids beyond the vocabulary", "refused with file and place", "65", "nothing",
     runs("bad_input_test", "BadInput.test_token_files") + runs("refusal_test", "Refusals.test_token_outside_the_vocabulary")),
    (13, "bad configuration", "some 200 wrong files", "every mistake at once, with place and nearest key", "78", "nothing",
     runs("bad_input_test", "BadInput.test_configurations")),
    (14, "gradient that is no number", "NaN and infinity on one rank", "the step is skipped by all, the tensor named; 76 once the budget is spent", "0 or 76", "that step",
     runs("ranks_test", "Ranks.test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_by_all") + runs("nonfinite_test", "NonFinite.test_budget_spent")),
    (15, "loss spike", "a step's loss far above the last ones", "named or skipped, as `spike` says", "0", "that step, under `skip`",
     runs("spike_test", "Spikes.test_a_skipped_spike_leaves_no_trace", "Spikes.test_a_warning_changes_nothing", "Spikes.test_a_shift_is_not_skipped_for_ever", "Spikes.test_the_window_survives_a_resume")),
    (16, "flipped bit in a replica", "one weight of one rank", "the next comparison of replicas names the tensor", "70", "steps since the checkpoint",
     runs("weight_hash_test", "WeightHash.test_a_flipped_bit_is_named")),
    (17, "flipped bit in a message", "one bit of a random message, compressed and plain", "named with sender, site and message", "71", "steps since the checkpoint",
     runs("damaged_message_test", "DamagedMessages.test_every_flipped_bit_ends_the_job_with_71", "DamagedMessages.test_without_checksums_nobody_knows", "DamagedMessages.test_a_rule_checks_its_own_messages")),
    (18, "other number of ranks", "20 random pairs of layouts", "the checkpoint is dealt out anew; residuals keep their sum or start at zero, and it says so", "0", "nothing",
     runs("reshape_test", "Reshape.test_twenty_random_pairs") + runs("coded_resume_test", "CodedResume.test_another_layout_says_that_residuals_start_anew", "CodedResume.test_residuals_keep_their_sums_under_other_data_ranks")
     + [("lab", "tests/lab/lab_test.py", "test_train_on_four_hosts_then_three_then_four")]),
    (19, "ranks started differently", "one rank with another configuration", "refused at the start", "78", "nothing",
     runs("start_and_clock_test", "Start.test_ranks_with_different_configurations_are_refused_at_once")),
    (20, "rank or file system that hangs", "SIGSTOP, before the start and before the end, too; a frozen file system", "the watchdog names it and ends the job", "71", "steps since the checkpoint",
     runs("ranks_test", "Ranks.test_a_stopped_rank_ends_the_job_with_71_and_its_name")
     + runs("hang_test", "Hangs.test_the_launcher_gets_71_while_the_file_system_is_still_frozen", "Hangs.test_a_rank_that_does_not_come_to_the_start_or_the_end_is_named")),
    (21, "slow rank", "a rank slowed down", "named with its factor; the run goes on", "0", "nothing",
     runs("straggler_test", "Stragglers.test_a_slow_rank_is_named", "Stragglers.test_a_rank_that_recovers_is_not_named_any_more", "Stragglers.test_one_rank_compares_nothing")),
    (22, "two jobs, one directory", "a second start; a lease of a dead or foreign holder", "the second is told who runs", "73", "nothing",
     runs("refusal_test", "Refusals.test_second_process_is_turned_away") + cases("checkpoint_tests", "tests/checkpoint/run_lock_test.cpp", "RunLock.*")),
    (23, "pulled cable", "a link of an emulated host shut off", "the watchdog ends both sides; the next start resumes", "71", "steps since the checkpoint",
     [("lab", "tests/lab/lab_test.py", "test_train_over_a_pulled_cable")]),
    (24, "short outage of a link", "a link shut off and on within TCP's patience", "survived", "0", "nothing",
     [("lab", "tests/lab/lab_test.py", "test_train_through_a_short_outage")]),
    (25, "slow link", "links of given rates", "slower steps, no time-out", "0", "nothing",
     [("lab", "tests/lab/lab_test.py", "test_rates")] + cases("comm_tests", "tests/comm/watchdog_test.cpp", "WatchdogThread.SlowTransfersAreSignsOfLife")),
    (26, "out of memory", "limits of addresses, of control groups and of Slurm; an allocation that fails; a neighbour that takes all of a control group", "refused before the first step, or ended with plan and limit", "78 or 74", "steps since the checkpoint",
     runs("saves_test", "Memory.test_a_rank_without_memory_says_what_was_planned", "Memory.test_a_limit_of_addresses_is_found_out_or_named",
          "Memory.test_the_limits_of_the_batch_system_count", "Memory.test_a_rank_that_the_kernel_kills_for_memory_is_named",
          "Memory.test_the_batch_script_says_so_where_nobody_else_can", "Memory.test_the_next_start_names_what_nobody_could_say")),
    (27, "clock that is set", "an hour ahead and a day back while the run goes on", "no false alarm, no number changes", "0", "nothing",
     runs("start_and_clock_test", "Clock.test_a_clock_that_is_set_ends_no_run_and_changes_no_number")),
    (28, "again and again", "kills at random moments", "ends bit-equal to an undisturbed run", "0 in the end", "steps since each checkpoint",
     runs("signal_test", "Signals.test_again_and_again") + runs("reshape_test", "Reshape.test_the_same_layout_goes_on_bit_for_bit")),
]


def command(kind, place, name):
    if kind == "python":
        return [sys.executable, str(ROOT / place), name]
    if kind == "gtest":
        return [str(BUILD / "tests" / place.split(":")[0]), f"--gtest_filter={name}"]
    if kind == "lab":
        return [sys.executable, str(ROOT / place), name]
    return ["ctest", "--test-dir", str(BUILD), "-R", f"^{name}$", "--output-on-failure", "--no-tests=error"]


def exists(kind, place, name):
    """Whether the source holds the test."""
    text = (ROOT / place.split(":")[-1]).read_text()
    if kind == "gtest":
        suite, case = name.split(".")
        return re.search(rf"TEST\w*\(\s*{suite},\s*{'' if case == '*' else case + r'[)]'}", text) is not None
    if kind == "ctest":
        return True
    return re.search(rf"def {name.split('.')[-1]}\(", text) is not None


def read_cells():
    """The newest cell of each test."""
    lines = CELLS.read_text().splitlines() if CELLS.exists() else []
    return {cell["test"]: cell for cell in map(json.loads, lines)}


def run(only):
    cells, failed = read_cells(), 0
    for number, fault, *_, tests in ROWS:
        if only and number not in only:
            continue
        for kind, place, name in tests:
            began = time.monotonic()
            done = subprocess.run(command(kind, place, name), cwd=ROOT, capture_output=True, text=True, errors="replace", check=False,
                                  env={**os.environ, "THINWIRE_BUILD": str(BUILD), "OMP_WAIT_POLICY": "passive", "PYTHONDONTWRITEBYTECODE": "1", "THINWIRE_TEST_FULL": "1"})
            said = [json.loads(line[6:]) for line in (done.stdout + done.stderr).splitlines() if line.startswith("fault:")]
            none = kind == "gtest" and "[  PASSED  ] 0 tests" in done.stdout  # the filter fits no test: GoogleTest calls that success
            skipped = done.returncode == 77 or re.search(r"skipped=|\[  SKIPPED \]|Skipped", done.stdout + done.stderr) is not None
            verdict = "skipped" if skipped else "passed" if done.returncode == 0 and not none else "failed"
            cells[name] = {"row": number, "test": name, "file": place.split(":")[-1], "verdict": verdict, "seconds": round(time.monotonic() - began, 1),
                           "said": [s for s in said if s["row"] == number]}
            failed += verdict == "failed"
            print(f"{number:2} {fault}: {name}: {verdict}, {cells[name]['seconds']} s", flush=True)
            if verdict == "failed":
                print((done.stdout + done.stderr)[-4000:], flush=True)
    known = {name for *_, tests in ROWS for _, _, name in tests}
    CELLS.write_text("".join(json.dumps(c) + "\n" for c in sorted(cells.values(), key=lambda c: (c["row"], c["test"])) if c["test"] in known))
    return 1 if failed else 0


def measured(cells, field, digits):
    values = sorted(s[field] for c in cells for s in c["said"] if field in s)
    if not values:
        return "–"
    return f"{values[0]:.{digits}f}" if values[0] == values[-1] else f"{values[0]:.{digits}f} to {values[-1]:.{digits}f}"


def page():
    cells = read_cells()
    passed = sum(all(cells.get(n, {}).get("verdict") == "passed" for *_, n in tests) and bool(tests) for *_, tests in ROWS)
    text = """# Faults: what a run meets, and what happens

| # | fault | how it is provoked | what happens | after seconds | exit code | lost | tests |
|---|---|---|---|---|---|---|---|
"""
    for number, fault, how, what, code, lost, tests in ROWS:
        own = [cells[n] for *_, n in tests if n in cells]
        states = {c["verdict"] for c in own}
        verdict = "no test yet" if not tests else "not run" if len(own) < len(tests) else "passed" if states == {"passed"} else ", ".join(sorted(states))
        names = "<br>".join(f"`{n.split('.')[-1]}`" for *_, n in tests)
        text += f"| {number} | {fault} | {how} | {what} | {measured(own, 'seconds', 1)} | {code} | {lost} | {verdict}{': ' if names else ''}{names} |\n"
    text += f"""
- {passed} of {len(ROWS)} faults are provoked by tests that passed when this page was made.
- Codes 71 and 75 may be queued again as they are; 74 once there is space, memory or a file system again; 65, 73, 76 and 78 need somebody to look ([exit codes](../programs.md#exit-codes)).
- What is lost is at most the steps since the last checkpoint: `save_interval`, and `save_interval_minutes` (30 by default) besides it.
- Seconds are from the fault to the end of the job, under the limits that the tests set (a watchdog of 4 or 5 s, 600 by default).
- Repeat: `tests/train/fault_matrix.py run && tests/train/fault_matrix.py page`; one row: `run --only 20`.
"""
    text += "\nThe rows are those of a reliability review of other trainers; four of them differ here: damaged data are refused, never skipped and counted; a loss spike is named or skipped, never rolled back; a flipped bit in a replica ends the run, and no step is computed again for a verdict; a damaged message ends the job instead of being sent again.\n"
    return text


def check():
    wrong = [f"row {n}: {name} is not in {place}" for n, *_, tests in ROWS for kind, place, name in tests if not exists(kind, place, name)]
    wrong += [f"row {n} ({fault}) has no test" for n, fault, *_, tests in ROWS if not tests]
    cells = read_cells()
    wrong += [f"row {n}: {name} has no cell that passed" for n, *_, tests in ROWS for *_, name in tests if cells.get(name, {}).get("verdict") != "passed"]
    if [n for n, *_ in ROWS] != list(range(1, 29)):
        wrong.append("rows are not 1 to 28")
    if not PAGE.exists() or PAGE.read_text() != page():
        wrong.append(f"{PAGE.relative_to(ROOT)} is not what its cells say: tests/train/fault_matrix.py page")
    print("\n".join(wrong) or f"{len(ROWS)} faults have their tests")
    return 1 if wrong else 0


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("what", choices=["run", "page", "check"])
    options.add_argument("--only", type=int, nargs="+", default=[])
    o = options.parse_args()
    if o.what == "run":
        return run(o.only)
    if o.what == "page":
        PAGE.write_text(page())
        return 0
    return check()


if __name__ == "__main__":
    sys.exit(main())
