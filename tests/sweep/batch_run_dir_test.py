# What the batch scripts do by themselves: find the run directory that train takes from the same arguments, judge an end before the
# run has begun, count cycles without progress, and submit a successor.
import json
import re
import shutil
import subprocess

from batch_stand_ins_test import StandInCase
from sweep_support import BUILD, ROOT, TINY, SweepCase, environment, main, tail_of


class RunDirs(SweepCase):
    def setUp(self):
        super().setUp()
        yaml = "".join(f"{key}: {json.dumps(value)}\n" for key, value in {**TINY, "lr": 1e-3}.items()) + "tokenizer: byte\n"
        flags = "--num-layers 2 --hidden-size 32 --num-attention-heads 2 --seq-length 32 --max-position-embeddings 32 --micro-batch-size 2 --train-iters 9 --lr 1e-3 --vocab-size 256\n"
        for name, text in {"bare": json.dumps({**TINY, "lr": 1e-3, "tokenizer": "byte"}), "c.v2.json": '{"seed": 7}', "own.jsonc": '{\n  # "run_dir": "nowhere",\n  "run-dir": "runs/mine" // "here"\n}',
                           "own.yml": yaml + "run_dir: runs/mine\n", "a.args": flags, "b.args": flags + "--run-dir runs/b\n"}.items():
            (self.here / name).write_text(text)

    def found(self, words, **variables):
        """Exit code and output of a script up to the start of its ranks; a last line is the run directory and what train is given."""
        return self.bash(f'tw_begin lsf x {words}; tw_check 1; echo "$tw_run_dir ${{tw_args[*]}}"', LSB_JOBID=1, THINWIRE_TRAIN=BUILD / "train", **variables)

    def bash(self, text, **variables):
        done = subprocess.run(["bash", "-uc", f". {ROOT}/scripts/batch_common.sh; {text}"], cwd=self.here, env={**environment(), **{k: str(v) for k, v in variables.items()}},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        return done.returncode, done.stdout.decode()

    def test_run_dir_is_the_one_that_train_takes(self):
        cases = {"--config own.yml": "runs/mine", "--args-file a.args": "runs/a", "--args-file=b.args": "runs/b", "--args-file b.args run_dir=x/y": "x/y", "--config bare --run-dir x/y": "x/y",
                 "--run-dir x/y --config bare run_dir=runs/z": "x/y", "--config bare": "runs/bare", "--config bare --config c.v2.json": "runs/bare", "--config c.v2.json --config=bare": "runs/c.v2",
                 "--config bare --config own.jsonc": "runs/mine", "--config own.yml run-dir=a/b": "a/b", "--config own.yml run-dir=a/b run_dir=c=d": "c=d", "--config own.yml run_dir=2024": "2024",
                 """--config bare run_dir='the "run" dir'""": 'the "run" dir'}
        for words, expected in cases.items():
            with self.subTest(words):
                code, text = self.found(words)
                self.assertEqual((code, text.splitlines()[-1]), (0, f"{expected} {words}".replace("'", "")), text)
                self.assertTrue((self.here / expected / "batch_cycles.json").exists())

    def test_where_train_is_not_asked_the_arguments_say_it(self):
        for words, expected in {"--config gone run-dir=a/b run_dir=c=d": "c=d", "--run-dir x/y --config gone run_dir=z": "x/y", "--run_dir=x/y": "x/y"}.items():
            self.assertEqual(self.found(words, THINWIRE_CHECK=0)[1].splitlines()[-1], f"{expected} {words}")
        for words, variables in (("--config bare", {"THINWIRE_CHECK": 0}), ("--config own.yml", {"THINWIRE_CONTAINER": "false a"})):
            code, text = self.found(words, **variables)
            self.assertEqual(code, 78)
            self.assertIn("give run_dir=DIR among its arguments", text)
        code, text = self.found("--config gone.json")
        self.assertEqual((code, (self.here / "runs").exists()), (78, False))
        self.assertRegex(text, r"(?s)error: .*gone.json.*train refuses this configuration \(directory ")

    def test_arguments_of_a_variable_may_have_lines(self):
        code, text = self.found("", THINWIRE_ARGS="--config bare\n  run_dir=a/b\n")
        self.assertEqual((code, text.splitlines()[-1]), (0, "a/b --config bare run_dir=a/b"), text)

    def test_windows_line_ends_are_no_part_of_arguments(self):
        (self.here / "list").write_bytes(b"--config bare run_dir=a\r\n--config\tbare\trun_dir=b c\r\n")
        for index, expected in ((0, "a"), (1, "b c")):
            self.assertEqual(self.bash(f'tw_begin_element lsf x list {index} 0; echo "$tw_run_dir"', LSB_JOBID=1, THINWIRE_TRAIN=BUILD / "train"), (0, expected + "\n"))
        (self.here / "args").write_bytes(b"--config\r\nbare\r\nrun_dir=b c\r\n")
        code, text = self.found("", THINWIRE_ARGS_FILE="args")
        self.assertEqual((code, text.splitlines()[-1]), (0, "b c --config bare run_dir=b c"), text)

    def test_a_log_may_lie_in_a_folder_of_any_name(self):
        folder = self.here / "R&D, 100 %"
        folder.mkdir()
        words = f"tw_begin lsf x --config bare 'run_dir={folder}/run'; echo here"
        self.assertEqual(self.bash(words, LSB_JOBID=1, THINWIRE_TRAIN=BUILD / "train", THINWIRE_LOG="%d/log.txt"), (0, ""))
        self.assertEqual((folder / "log.txt").read_text(), "here\n")

    def test_what_a_site_sources_may_read_variables_that_are_not_set(self):
        (self.here / "site.sh").write_text('a=$NOBODY_HAS_SET\nmodule() { b=$NOR_THIS; echo "module $*"; }\nTHINWIRE_MODULES="gcc mpi"\n')
        self.assertEqual(self.bash("tw_device=cpu THINWIRE_SITE=./site.sh; tw_load_site; [[ $- == *u* ]] && echo again"), (0, "module load gcc\nmodule load mpi\nagain\n"))

    def test_a_job_that_is_no_element_of_an_array_says_so(self):
        for index, first in (("''", 0), (0, 1)):  # LSF gives other jobs the index 0
            code, text = self.bash(f"tw_begin_element lsf x a.args {index} {first}")
            self.assertEqual((code, text), (64, "error: x: not an element of an array: submit with an array of indices (see the head of x)\n"))

    def test_outside_a_job_or_without_tasks_a_script_says_so(self):
        for system in ("slurm", "slurm_chain", "lsf", "pbs", "flux"):
            code, text = self.bash(f"unset ${{!SLURM_*}} ${{!LSB_*}} ${{!PBS_*}}; flux() {{ return 1; }}; tw_begin {system} x --config bare run_dir=a")
            self.assertEqual((code, text, (self.here / "a").exists()), (64, f"error: x: this is no job of {system.removesuffix('_chain')}: submit the script, as its head says\n", False))
        code, text = self.bash("unset SLURM_NTASKS THINWIRE_RANKS; tw_begin slurm x --config bare; tw_run_slurm", SLURM_JOB_ID=1, THINWIRE_TRAIN=BUILD / "train")
        self.assertEqual(code, 78)
        self.assertIn("give sbatch --ntasks or --ntasks-per-node", text)

    def test_a_successor_is_given_what_the_head_names(self):
        head = (ROOT / "scripts" / "batch_common.sh").read_text().partition("# Exit codes")[0]
        own_words = {"THINWIRE_ARGS", "THINWIRE_ARGS_FILE", "THINWIRE_ROOT"}
        named = set(re.findall(r"^#   (THINWIRE_\w+)", head, re.M)) - own_words
        self.assertGreater(len(named), 8)
        self.assertEqual(named - set(re.findall(r",(\w+)=x", self.bash("tw_hooks", **dict.fromkeys(named, "x"))[1])), set())


class EndsBeforeTheRunBegins(SweepCase):
    def verdict(self, code, **variables):
        status = self.here / "status.json"
        words = " ".join(f"{k}={v};" for k, v in {"tw_status": status, "tw_asked": "", "tw_code": code, **variables}.items())
        done = subprocess.run(["bash", "-uc", f". scripts/batch_common.sh; {words} tw_before=$(tw_fingerprint) tw_kills=${{tw_kills-$(tw_memory_group)}}; tw_decide; echo $tw_verdict $tw_exit"],
                              cwd=ROOT, stdout=subprocess.PIPE, check=True)
        return done.stdout.decode().split()

    def test_a_rank_that_was_killed_is_started_again_where_the_run_has_begun_before(self):
        refusals, deaths = (64, 65, 70, 73, 74, 76, 78, 126, 127), (9, 137, 143, 255)
        for code in (*refusals, *deaths):
            self.assertEqual(self.verdict(code), ["failed", str(code)], "it may never have run: the launcher's options, for instance")
        self.assertEqual(self.verdict(71), ["again", "75"])
        (self.here / "status.json").write_text('{"state": "running", "code": null, "step": 4, "started": "2026-01-01T00:00:00Z"}')
        for code in refusals:
            self.assertEqual(self.verdict(code), ["failed", str(code)])
        for code in deaths:
            self.assertEqual(self.verdict(code), ["again", "75"])
            self.assertEqual(self.verdict(code, THINWIRE_CHECK=0), ["failed", str(code)], "a refusal whose code the launcher has lost looks the same")
            self.assertEqual(self.verdict(code, tw_kills="other"), ["failed", str(code)], "killed for want of memory")
        self.assertEqual(self.verdict(0), ["failed", "70"])


class Successors(SweepCase):
    def words(self, said_by_sbatch, standard_output):
        """What sbatch and scancel are given for the successor of a job in a chain of Slurm, one word in a line."""
        given = self.here / "given"
        given.write_text("")
        text = f"""squeue() {{ case $5 in %l) echo 1:00 ;; %q) echo long ;; esac; }}
            scontrol() {{ echo 'JobId=6 JobName=a b StdErr=/e StdIn=/dev/null StdOut={standard_output}'; }}
            sbatch() {{ printf '%s\n' "$@" >>{given}; echo '{said_by_sbatch}'; }}
            scancel() {{ printf '%s\n' scancel "$@" >>{given}; }}
            . scripts/batch_common.sh
            tw_system=slurm_chain tw_script=chain.sh tw_args=(a=1) SLURM_JOB_ID=6 SLURM_JOB_NAME='a b' SLURM_JOB_NUM_NODES=1 SLURM_JOB_PARTITION=p SLURM_MEM_PER_NODE=500 SLURM_GPUS_PER_NODE=a100:4
            tw_submit_successor; tw_drop_successor"""
        said = subprocess.run(["bash", "-uc", text], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True).stdout.decode()
        self.assertRegex(said, r"^thinwire \S+ job 7 waits for the end of this one\n$")
        return given.read_text().splitlines()

    def test_output_with_blanks_and_jobs_of_other_clusters(self):
        for standard_output, expected in (("/a b/x.out Power=", "/a b/x.out"), ("/a b/x y.out TresPerNode=gres:gpu Power= NtasksPerTRES:0 ", "/a b/x y.out"), ("/x.out ", "/x.out")):
            self.assertIn(f"--output={expected}", self.words("7", standard_output))
        for said, expected in (("7", ["scancel", "7"]), ("7;c1", ["scancel", "--clusters=c1", "7"])):
            words = self.words(said, "/x.out Power=")
            self.assertEqual(words[words.index("chain.sh"):], ["chain.sh", "a=1", *expected])
            self.assertLessEqual({"--time=1:00", "--qos=long", "--mem=500", "--gpus-per-node=a100:4"}, set(words))

    def test_an_element_of_an_array_goes_back_into_the_queue_alone(self):
        """One element's job id is that of the array: by it Slurm would stop all the others and begin them again."""
        for variables, expected in (("SLURM_JOB_ID=7", "7"), ("SLURM_JOB_ID=7 SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=2", "7_2")):
            text = f'scontrol() {{ echo "$@"; }}; . scripts/batch_common.sh; {variables} tw_system=slurm tw_run_dir=x; tw_find_job; tw_queue_again'
            done = subprocess.run(["bash", "-uc", text], cwd=ROOT, env=environment(), stdout=subprocess.PIPE, check=False)
            self.assertEqual((done.returncode, done.stdout.decode()), (75, f"requeue {expected}\n"))

    def test_commas_in_paths_are_quoted_for_qsub(self):
        folder = self.here / "c,d"
        folder.mkdir()
        for variables, expected in (("tw_list=a,b tw_index=3", "\"THINWIRE_LIST='a,b'\",THINWIRE_INDEX=3"), ("tw_args=(a=1)", f"\"THINWIRE_ARGS_FILE='{folder}/x/batch_args'\"")):
            text = f"""qsub() {{ printf '%s\n' "$@" >given; echo 8; }}; . {ROOT}/scripts/batch_common.sh; mkdir -p x
                {variables} tw_system=pbs tw_script=s.sh tw_run_dir=x tw_cycles=x/cycles tw_cycle=1 tw_without=0 tw_step=0 tw_saved=0 tw_job=7; tw_queue_again"""
            done = subprocess.run(["bash", "-uc", text], cwd=folder, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            self.assertEqual((done.returncode, (folder / "given").read_text().splitlines()), (75, ["-v", f"\"THINWIRE_ROOT='{folder}'\",{expected}", "s.sh"]), done.stdout)


class RunsBegunAnew(StandInCase):
    def test_what_they_save_is_progress_below_the_largest_step(self):
        for save in (self.run_dir() / "checkpoints", self.here / "elsewhere"):
            with self.subTest(save):
                shutil.rmtree(self.here / "queue", ignore_errors=True)
                shutil.rmtree(self.run_dir(), ignore_errors=True)
                self.run_dir().mkdir()
                (self.run_dir() / "batch_cycles.json").write_text('{"cycles": 7, "without_progress": 0, "step": 1000, "open": false}')
                self.submit("lsf/one_node_cpu.sh", arguments=self.words("train_iters=60", "pace=0.02", f"save={save}"))
                starts = self.queue.drain(warn=lambda job, seconds, save=save: self.at_step(tail_of(save / "latest.json")["step"] + 10 if save.exists() else 10)(job, seconds))
                self.assertEqual((self.status()["state"], self.cycles()["without_progress"], self.cycles()["saved"]), ("finished", 0, 60), self.queue.all_output())
                self.assertEqual(self.cycles()["cycles"], 7 + starts)
                self.assertEqual(list(self.run_dir().glob("checkpoints")) == [], save.name == "elsewhere")


if __name__ == "__main__":
    main()
