# `report --follow`: the page grows with the run, is whole whenever it is read, ends as the run ends, and in a real browser loads itself again where it stood.
import base64
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "train"))
import run_support

BUILD = os.environ.get("THINWIRE_BUILD", os.path.join(ROOT, "build"))
REPORT = os.path.join(BUILD, "report")
BROWSER = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)
LIMIT = 60


class Run:
    """A run directory that a test writes as `train` does."""

    def __init__(self, path, total=10):
        self.path, self.total, self.step = path, total, 0

    def begin(self):
        os.makedirs(self.path)
        self.file("config.resolved.json", json.dumps({"num_layers": 4, "padding": "x" * 20000}))
        self.status("running")

    def file(self, name, text):
        with open(os.path.join(self.path, name + ".new"), "w", encoding="utf-8") as f:
            f.write(text)
        os.replace(f.name, os.path.join(self.path, name))

    def steps(self, count):
        for _ in range(count):
            self.step += 1
            line = {"step": self.step, "loss": 5 - 0.01 * self.step, "grad_norm": 1.0, "lr": 1e-3, "wall_s": 0.5 * self.step, "step_ms": 10, "tokens_per_s": 1000,
                    "time_ms": {"forward": 3, "backward": 6}, "comm": {"dp.gradient": {"wire_bytes": 10, "logical_bytes": 40, "busy_ms": 2, "exposed_ms": 1}}}
            with open(os.path.join(self.path, "metrics.jsonl"), "a", encoding="utf-8") as f:
                f.write(json.dumps(line) + "\n")

    def status(self, state, code=None, reason="", message=""):
        self.file("status.json", json.dumps({"state": state, "code": code, "reason": reason or state, "message": message, "step": self.step, "total_steps": self.total,
                                             "requeue": code in (71, 75), "started": "2026-01-01T00:00:00Z", "updated": "2026-01-01T00:00:01Z"}))


def until(condition, what, limit=LIMIT):
    end = time.monotonic() + limit
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit} s: {what}")
        time.sleep(0.02)
    return found


class Case(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="follow_test")
        self.addCleanup(shutil.rmtree, self.folder)
        self.run_dir = os.path.join(self.folder, "the run")
        self.page = os.path.join(self.run_dir, "report.html")

    def follow(self, *more, every=0.1):
        process = subprocess.Popen([REPORT, "--follow", self.run_dir, "--every", str(every), *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def read(self):
        with open(self.page, encoding="utf-8") as f:
            return f.read()

    def shows(self, words):
        until(lambda: os.path.exists(self.page) and words in self.read(), words)

    def ended(self, process, code=0):
        out, err = process.communicate(timeout=LIMIT)
        self.assertEqual((process.returncode, err), (code, ""), out)
        self.assertTrue(self.read().endswith("</html>\n"))
        self.assertIn("})(0);", self.read())  # loads itself no more
        self.assertEqual([n for n in os.listdir(self.run_dir) if ".tmp-" in n], [])
        return out.splitlines()[-1]


class Follow(Case):
    def test_grows_with_the_run_is_always_whole_and_ends_with_it(self):
        process = self.follow()
        run = Run(self.run_dir)
        self.assertIn("loads itself again every 0.1 s", process.stdout.readline())
        self.assertIn("waiting for", process.stdout.readline())
        run.begin()
        self.shows("waiting for the first step")
        halves, stop = [], threading.Event()

        def reads():
            while not stop.is_set():
                text = self.read()
                if not (text.startswith("<!doctype html>") and text.endswith("</html>\n")):
                    halves.append(text[-200:])
        reader = threading.Thread(target=reads)
        reader.start()
        for _ in range(5):
            run.steps(2)
            run.status("running")
            self.shows(f"<b>{run.step} / 10</b>")
        self.assertIn("})(100);", self.read())
        run.status("finished", 0)
        said = self.ended(process)
        stop.set()
        reader.join()
        self.assertEqual(halves, [])
        self.assertEqual(said, "the run has ended: finished, code 0, after step 10 of 10")
        self.assertIn(said, self.read())

    def test_says_how_a_run_failed(self):
        run = Run(self.run_dir)
        run.begin()
        run.steps(3)
        run.status("failed", 76, "diverged", "loss is nan <b>")
        self.assertEqual(self.ended(self.follow()), "the run has ended: failed, code 76 (diverged), after step 3 of 10")
        self.assertIn("loss is nan &lt;b&gt;", self.read())
        run.status("preempted", 75, "preempted")
        self.assertIn("; the same command goes on", self.ended(self.follow()))

    def test_a_run_that_was_killed_is_given_up_after_the_stated_time(self):
        run = Run(self.run_dir)
        run.begin()
        run.steps(3)
        start = time.monotonic()
        process = self.follow("--quiet", "5")
        self.assertIn("after 5 s without news", process.stdout.readline())
        self.shows("live: written")
        time.sleep(1)  # far from five, also where all this takes a second or two more
        run.steps(1)  # news: the time begins anew
        self.shows("<b>4 / 10</b>")
        said = self.ended(process)
        self.assertGreater(time.monotonic() - start, 6)
        self.assertRegex(said, r"^no news since 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\dZ \(5 s\): the run was killed, or hangs$")
        self.assertRegex(self.read(), r'<span class="pill bad">no news since 20')

    def test_a_run_that_died_long_ago_needs_no_waiting(self):
        run = Run(self.run_dir)
        run.begin()
        run.steps(1)
        for name in os.listdir(self.run_dir):
            os.utime(os.path.join(self.run_dir, name), (1.6e9, 1.6e9))
        self.assertIn("no news since 2020-09-13T12:26:40Z", self.ended(self.follow()))

    def test_signals_leave_a_whole_page_that_rests(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            with self.subTest(number):
                run = Run(self.run_dir)
                run.begin()
                run.steps(2)
                process = self.follow(every=30)
                self.shows("live: written")
                process.send_signal(number)
                self.assertIn("not followed any more since", self.ended(process, 75))
                shutil.rmtree(self.run_dir)

    def test_refusals(self):
        plain = os.path.join(self.folder, "file")
        with open(plain, "w", encoding="utf-8") as f:
            f.write("x")
        absent = os.path.join(self.folder, "absent")
        for words, code, said in (([absent, "--follow", "--quiet", "1", "--every", "0.1"], 65, "no such run directory came within 1 s"), ([plain, "--follow"], 65, "no such run directory"),
                                  ([absent, absent, "--follow"], 64, "takes one run directory"), ([absent, "--every", "1"], 64, "--follow"),
                                  ([absent, absent, "--follow", "--compare"], 64, "exclude each other"), ([absent, "--svg", "loss"], 64, "--output"),
                                  ([absent, "--x", "wall_s"], 64, "--svg"), ([absent, "--svg", "speed"], 64, "speed")):
            with self.subTest(words):
                done = subprocess.run([REPORT, *words], capture_output=True, text=True, timeout=LIMIT, check=False)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertIn(said, done.stderr)

    def test_a_real_run_is_followed_to_its_end(self):
        process = self.follow("--output", os.path.join(self.folder, "live.html"))
        subprocess.run([os.path.join(BUILD, "train"), "--config", "configs/gpt2_tiny.json", "train_iters=20", "eval_interval=10", "eval_iters=1", "threads_per_rank=1",
                        f"run_dir={self.run_dir}"], cwd=ROOT, stdout=subprocess.DEVNULL, check=True, timeout=LIMIT)
        self.page = os.path.join(self.folder, "live.html")
        self.assertEqual(self.ended(process), "the run has ended: finished, code 0, after step 20 of 20")
        self.assertIn("Loss by time", self.read())
        picture = os.path.join(self.folder, "loss.svg")
        subprocess.run([REPORT, self.run_dir, "--svg", "eval_loss", "--x", "wall_s", "--output", picture], stdout=subprocess.DEVNULL, check=True, timeout=LIMIT)
        with open(picture, encoding="utf-8") as f:
            self.assertIn("seconds since the first start", f.read())


class Browser:
    """Chromium without a window, spoken to in its own protocol over two pipes: JSON, a zero byte behind each message."""

    def __init__(self, folder):
        to_read, self.to = os.pipe()
        self.back, back_write = os.pipe()
        command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--window-size=1280,900",
                   f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
        self.process = subprocess.Popen(["bash", "-c", f'exec "$@" 3<&{to_read} 4>&{back_write}', "browser", *command], pass_fds=(to_read, back_write),
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        os.close(to_read)
        os.close(back_write)
        self.count, self.bytes, self.session = 0, b"", None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Page.enable")

    def call(self, method, **params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params, **({"sessionId": self.session} if self.session else {})}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + LIMIT
        while True:
            while b"\0" not in self.bytes:
                if not select.select([self.back], [], [], max(0, end - time.monotonic()))[0]:
                    raise AssertionError(f"the browser does not answer {method}")
                got = os.read(self.back, 1 << 20)
                if not got:
                    raise AssertionError("the browser has ended")
                self.bytes += got
            one, _, self.bytes = self.bytes.partition(b"\0")
            answer = json.loads(one)
            if answer.get("id") == self.count:
                if "error" in answer:
                    raise RuntimeError(answer["error"]["message"])
                return answer["result"]

    def value(self, expression):
        """None where the page is just being loaded."""
        try:
            result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        except RuntimeError:
            return None
        return result["result"].get("value")

    def picture(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def close(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()
        os.close(self.to)
        os.close(self.back)


@unittest.skipUnless(BROWSER, "no chromium here: scripts/install_deps.sh --with chromium")
class InABrowser(Case):
    def test_the_page_loads_itself_again_where_it_stood(self):
        run = Run(self.run_dir, 300)
        run.begin()
        run.steps(100)
        process = self.follow(every=0.5)
        self.shows("<b>100 / 300</b>")
        # Errors of scripts would show as exceptions; loads are counted by the page's own clock.
        browser = Browser(os.path.join(self.folder, "browser"))
        self.addCleanup(browser.close)
        browser.call("Page.navigate", url="file://" + self.page.replace(" ", "%20"))
        steps = 'document.readyState === "complete" && document.querySelector(".tile b").textContent'
        until(lambda: browser.value(steps) == "100 / 300", "the page in the browser")
        first = browser.value("performance.timeOrigin")
        self.assertGreater(browser.value("document.querySelectorAll('figure svg').length"), 8)
        browser.value("document.querySelector('details').open = true; scrollTo(0, 700)")
        self.assertEqual(browser.value("scrollY"), 700)
        for _ in range(2):
            run.steps(100)
            run.status("running")
            until(lambda: browser.value(steps) == f"{run.step} / 300", f"{run.step} steps in the browser, which nobody told to load anything")
            self.assertEqual(browser.value("scrollY"), 700)
            self.assertTrue(browser.value("document.querySelector('details').open"))
        self.assertGreater(browser.value("performance.timeOrigin"), first)
        self.assertIn("live: written", browser.value("document.querySelector('p.live').textContent"))
        if shots := os.environ.get("THINWIRE_SCREENSHOTS"):
            browser.value("scrollTo(0, 0)")
            browser.picture(os.path.join(shots, "live.png"))
            browser.value("scrollTo(0, 700)")
        run.status("finished", 0)
        self.ended(process)
        until(lambda: browser.value("document.readyState === 'complete' && document.querySelector('.pill').textContent") == "finished", "the end in the browser")
        last = browser.value("performance.timeOrigin")
        time.sleep(1.2)
        self.assertEqual(browser.value("performance.timeOrigin"), last)  # it rests
        self.assertEqual(browser.value("scrollY"), 700)


if __name__ == "__main__":
    if not os.access(REPORT, os.X_OK):
        print(f"{REPORT} is missing")
        sys.exit(77)
    run_support.main()
