"""A run directory as pandas frames. Reading is tolerant: a run that was killed, or trains at this moment, loads too."""
import dataclasses
import json
import os


def json_lines(text):
    """(records, how many lines were none, whether the last one is torn) of the bytes of a metrics.jsonl."""
    lines = text.split(b"\n")
    torn = bool(lines.pop())
    records, broken = [], int(torn)
    for line in lines:
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or type(record.get("step")) is not int:
                raise ValueError
            records.append(record)
        except ValueError:  # also bytes that are no UTF-8
            broken += 1
    return records, broken, torn


def is_evaluation(record):
    return "eval_loss" in record


def flat(record, skip=()):
    """Nested numbers by their path, lists as they are."""
    out = {}
    for key, value in record.items():
        if key in skip:
            continue
        if isinstance(value, dict):
            out.update({f"{key}.{name}": inner for name, inner in flat(value).items()})
        else:
            out[key] = value
    return out


@dataclasses.dataclass
class Run:
    """metrics: a row per step (index), evaluations: a row per step and split, sites: a row per step and site. Missing values are NaN.
    status, config: status.json and config.resolved.json, {} where they are missing. problems: what was missing or broken, in words. Printed are folder and problems alone."""
    directory: str
    metrics: "pandas.DataFrame" = dataclasses.field(repr=False)
    evaluations: "pandas.DataFrame" = dataclasses.field(repr=False)
    sites: "pandas.DataFrame" = dataclasses.field(repr=False)
    status: dict = dataclasses.field(repr=False)
    config: dict = dataclasses.field(repr=False)
    problems: list

    @property
    def name(self):
        return os.path.basename(os.path.abspath(self.directory))

    def axis(self, frame, x):
        """Where the rows of `frame` (metrics or evaluations) lie along "step", "tokens" or "wall_s" (seconds since the run's first start)."""
        steps = frame.index.get_level_values("step")
        if x == "step":
            return steps.to_numpy(dtype=float)
        if x == "wall_s":
            return (frame["wall_s"] if "wall_s" in frame else frame.reindex(columns=["wall_s"])["wall_s"]).to_numpy(dtype=float)
        if x == "tokens":
            return self.metrics.reindex(columns=["consumed_tokens"])["consumed_tokens"].reindex(steps).to_numpy(dtype=float)
        raise ValueError(f'x={x!r}: there are "step", "tokens" and "wall_s"')


def frame_of(rows, index):
    import pandas
    frame = pandas.DataFrame.from_records(list(rows.values()))
    frame.index = pandas.MultiIndex.from_tuples(list(rows), names=index) if len(index) > 1 else pandas.Index(list(rows), name=index[0], dtype="int64")
    # A key that only some lines have, or null in some, is a number with gaps; words and truth values stay what they are.
    for name in frame.columns:
        if frame[name].dtype == object and all(v is None or type(v) in (int, float) for v in frame[name]):
            frame[name] = frame[name].astype(float)
    return frame.sort_index(kind="stable")


def load_run(directory):
    """Reads a run directory. NotADirectoryError where there is none; whatever else is missing or broken is in Run.problems."""
    directory = os.fspath(directory)
    if not os.path.isdir(directory):
        raise NotADirectoryError(f"{directory}: no such run directory; give the one that holds metrics.jsonl (key run_dir of the run)")
    problems, objects = [], {}
    for name in ("status.json", "config.resolved.json"):
        try:
            with open(os.path.join(directory, name), "rb") as f:
                objects[name] = json.load(f)
            if not isinstance(objects[name], dict):
                raise ValueError("no JSON object")
        except FileNotFoundError:
            problems.append(f"{name} is missing")
        except ValueError as e:
            problems.append(f"{name}: {e}")
            objects.pop(name, None)
    text = b""
    try:
        with open(os.path.join(directory, "metrics.jsonl"), "rb") as f:
            text = f.read()
    except FileNotFoundError:
        problems.append("metrics.jsonl is missing")
    records, broken, torn = json_lines(text)
    if broken:
        problems.append(f"metrics.jsonl: {broken} {'line is' if broken == 1 else 'lines are'} no complete JSON record and left out"
                        + (" (the last one is torn: the run was killed or is writing it now)" if torn else ""))
    steps, evaluations = {}, {}
    for r in records:  # of those that repeat a step the last counts
        if is_evaluation(r):
            evaluations[r["step"], r.get("split", "valid")] = r
        else:
            steps[r["step"]] = r
    sites = {(step, site): flat(s) for step, r in steps.items() if isinstance(r.get("comm"), dict) for site, s in r["comm"].items() if isinstance(s, dict)}
    steps = {step: flat(r, ("step", "comm")) for step, r in steps.items()}
    evaluations = {key: flat(r, ("step", "split", "comm")) for key, r in evaluations.items()}
    return Run(directory, frame_of(steps, ["step"]), frame_of(evaluations, ["step", "split"]), frame_of(sites, ["step", "site"]),
               objects.get("status.json", {}), objects.get("config.resolved.json", {}), problems)
