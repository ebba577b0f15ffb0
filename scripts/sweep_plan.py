# Reads the plan of a sweep and expands it into points; all that is wrong with it is said at once.
import collections
import dataclasses
import hashlib
import itertools
import json
import math
import os
import re

import lab_network
import sweep_config
import sweep_json
from lab_namespaces import LabError

ROOT, BASE = sweep_config.ROOT, sweep_config.BASE
PLAN_KEYS = ("name", "about", "configs", "set", "grid", "zip", "list", "seeds", "baseline", "launcher", "paper")
LOCAL_KINDS = ("local", "lab")
BATCH_KINDS = ("slurm", "lsf", "pbs", "flux")
KINDS = LOCAL_KINDS + BATCH_KINDS
MAX_POINTS = 9999
OURS = ("run_dir", "save")  # keys that a sweep sets itself: two points in one directory would be one run


class PlanError(Exception):
    """What is wrong with a plan, one line each. exit code 78."""

    def __init__(self, problems):
        super().__init__("\n".join(problems))
        self.problems = problems


def whole(low, high):
    return (lambda v: isinstance(v, int) and not isinstance(v, bool) and low <= v <= high), f"a whole number from {low} to {high}"


def words(*allowed):
    return (lambda v: v in allowed), " | ".join(allowed)


def seconds_of(text):
    """Seconds of "90s", "10m", "1h30m", "1:30:00" or a number; None where it is no duration."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text) if text > 0 else None
    if not isinstance(text, str):
        return None
    if re.fullmatch(r"(\d+:)?\d+:\d\d(:\d\d)?", text) and (clock := [int(p) for p in text.split(":")]):
        clock = [0] * (3 - len(clock)) + clock
        return float(sum(p * u for p, u in zip(reversed(clock), (1, 60, 3600, 86400)))) or None
    parts = re.findall(r"(\d+(?:\.\d+)?)(s|m|h|d)", text)
    if not parts or "".join(n + u for n, u in parts) != text:
        return None
    return sum(float(n) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[u] for n, u in parts) or None


def rate_is_good(value):
    try:
        return isinstance(value, str) and (lab_network.parse_rate(value) or True)
    except LabError:
        return False


TEXT = (lambda v: isinstance(v, str) and v.strip() != "" and "\n" not in v), "a text of one line"
LINES = (lambda v: isinstance(v, str) or isinstance(v, list) and all(isinstance(x, str) for x in v)), "a text or a list of texts"
TIME = (lambda v: seconds_of(v) is not None), 'a time such as "90s", "10m", "1h30m" or "1:30:00"'
ANY, LAB, BATCH = KINDS, ("lab",), BATCH_KINDS

# field of a launcher: (kinds that have it, may it be an axis "@field", test, what is expected)
LAUNCHER = {
    "kind": (ANY, False, *words(*KINDS)),
    "ranks": (ANY, True, *whole(1, 1000000)),
    "threads": (ANY, True, *whole(1, 4096)),
    "time_limit": (ANY, True, *TIME),
    "at_once": (ANY, False, (lambda v: v == "auto" or whole(1, 100000)[0](v)), '"auto" or a whole number'),  # a batch system: of each array
    "hosts": (LAB, True, *whole(1, lab_network.MAX_HOSTS)),
    "rate": (LAB, True, rate_is_good, 'a rate such as "100mbit" (at least 100kbit) or "none"'),
    "partition": (BATCH, False, *TEXT),
    "account": (BATCH, False, *TEXT),
    "queue": (BATCH, False, *TEXT),
    "nodes": (BATCH, True, *whole(1, 1000000)),
    "ranks_per_node": (BATCH, True, *whole(1, 4096)),
    "gpus_per_node": (BATCH, True, *whole(0, 64)),
    "walltime": (BATCH, True, *TIME),
    "setup": (BATCH, False, *LINES),
    "container": (BATCH, False, *TEXT),
    "extra": (BATCH, False, *LINES),  # further directives, as the site wants them
}


@dataclasses.dataclass(eq=False)
class Point:
    """One run to be: what varies, what it means for the configuration, how it is launched."""

    id: str = None        # "007-zeropp-seed1235": the number stays when the plan grows
    number: int = 0       # from 1
    name: str = None      # of an entry of `list`
    axes: dict = dataclasses.field(default_factory=dict)      # {key of an axis as the plan spells it: value here}; launcher fields with their @
    keys: dict = dataclasses.field(default_factory=dict)      # all overrides of the base configurations, flat, by the keys' own names
    launcher: dict = dataclasses.field(default_factory=dict)  # kind, ranks, threads, ... of this point
    seed: int = None      # of the whole configuration
    baseline: str = None  # id of the point that it is compared with; its own id: it is one; None: none
    config: dict = dataclasses.field(default_factory=dict)    # the whole configuration, flat, without run_dir

    def identity(self):
        """What makes it another run: its configuration and where it runs, not for how long or how many beside it."""
        where = {k: self.launcher.get(k) for k in ("kind", "ranks", "hosts", "rate", "nodes", "ranks_per_node", "gpus_per_node")}
        return hashlib.sha256(json.dumps([self.config, where, self.name], sort_keys=True).encode()).hexdigest()

    def cores(self):
        return self.launcher["ranks"] * self.launcher.get("threads", 1)


class Plan:
    def __init__(self, path, text, value, points):
        self.path, self.text, self.points = path, text, points  # text: the file as it is
        self.name, self.paper = value["name"], value.get("paper")
        self.launcher = {"kind": "local", "ranks": 1, **(value.get("launcher") or {})}


class Expansion:
    """One plan on its way: collects what is wrong instead of stopping at the first."""

    def __init__(self, shown, value, keys):
        self.shown, self.value, self.keys, self.problems = shown, value, keys, []

    def bad(self, where, message):
        self.problems.append(f"{where or self.shown}: {message}")

    def at(self, holder, key):
        return getattr(holder, "at", {}).get(key, self.shown)

    def done(self):
        if self.problems:
            raise PlanError(self.problems)

    def typed(self, key, kind, what):
        """value[key] where it has the right type, else None."""
        value = self.value.get(key)
        if value is not None and not isinstance(value, kind):
            self.bad(self.at(self.value, key), f"{key}: must be {what}")
            return None
        return value

    def check_top(self):
        for key in self.value:
            if key not in PLAN_KEYS:
                self.bad(self.at(self.value, key), f'unknown key "{key}"' + sweep_config.nearest(key, PLAN_KEYS, f" (known: {', '.join(PLAN_KEYS)})"))
        name = self.value.get("name")
        if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}", name):
            self.bad(self.at(self.value, "name"), "name: is needed: up to 64 letters, digits, _ - . (it names a folder)")
        for key in ("about", "paper"):
            self.typed(key, str, "a text")

    def read_configs(self):
        names = self.typed("configs", list, "a list of files")
        if not names or not all(isinstance(n, str) for n in names):
            return self.bad(self.at(self.value, "configs"), "configs: name at least one configuration file, relative to the repository root") or []
        found = []
        for name in names:
            try:
                path = sweep_config.shipped(name, "configs", os.path.join("configs", "compression"))
                config = sweep_config.as_configuration(sweep_json.read(path, name), path)
                if "save" in config:
                    self.bad(config.at["save"], "save: all points would share this directory of checkpoints; take it out")
                for key in sweep_config.twice(self.keys, config):
                    self.bad("", f'configs: {name}: "{key}" is given twice (its other names count)')
                found.append(config)
            except sweep_json.TextError as e:
                yaml = name.endswith((".yml", ".yaml"))
                self.bad("", f"configs: {e}" + (f"; plans name JSON: `train --config {name} --print-config` says it so (take out its save)" if yaml else ""))
        return found

    def check_key(self, place, key, axis):
        """Whether a key of set, grid, zip or list may stand there."""
        if key.startswith("@"):
            field = key[1:]
            if field not in LAUNCHER:
                self.bad(place, f'"{key}": the launcher has no field {field}' + sweep_config.nearest(key, [f"@{f}" for f in LAUNCHER]))
            elif not LAUNCHER[field][1] or not axis:
                self.bad(place, f'"{key}": {"is one for the whole sweep: say it in launcher" if axis else "belongs into launcher, without @"}')
            elif self.kind not in LAUNCHER[field][0]:
                self.bad(place, f'"{key}": launcher {self.kind} has no field {field}')
            else:
                return True
            return False
        name = self.keys.canonical(key)
        if not self.keys.known(name):
            self.bad(place, self.keys.unknown(key))
            return False
        if name in OURS:
            self.bad(place, f"{key}: the sweep gives each point a directory of its own; take it out")
            return False
        return True

    def check_value(self, holder, key, value):
        """A value of an axis: what a launcher's field may be, and keys inside of a section's: {"compression": {"presett": ...}}."""
        if key.startswith("@"):
            if not LAUNCHER[key[1:]][2](value):
                self.bad(self.at(holder, key), f'"{key}": {json.dumps(value)} is not {LAUNCHER[key[1:]][3]}')
        elif isinstance(value, dict):
            for name, _ in self.keys.flatten({key: value}):
                if not self.keys.known(name):
                    self.bad(self.at(holder, key), self.keys.unknown(name))

    def is_axis(self, holder, key):
        """Whether a key of grid or zip is one that may stand there, with values to go through."""
        good = self.check_key(self.at(holder, key), key, True)
        if not isinstance(holder[key], list) or not holder[key]:
            self.bad(self.at(holder, key), f'"{key}": must be a list of values to go through, at least one')
            return False
        return good

    def read_axes(self):
        """[(keys of the axis, [{key: value, ...}, ...])], in the order grid, zip, list, seeds."""
        axes = []
        grid = self.typed("grid", dict, "an object of lists") or {}
        for key in (key for key in grid if self.is_axis(grid, key)):
            for i, value in enumerate(grid[key]):
                if any(value == v and isinstance(value, bool) == isinstance(v, bool) for v in grid[key][:i]):
                    self.bad(self.at(grid, key), f'"{key}": the value {json.dumps(value)} is there twice; two equal points are one run')
                self.check_value(grid, key, value)
            axes.append(([key], [{key: v} for v in grid[key]]))
        walk = self.typed("zip", dict, "an object of lists that are walked together") or {}
        good = [key for key in walk if self.is_axis(walk, key)]
        if len({len(walk[key]) for key in good}) > 1:
            self.bad(self.at(self.value, "zip"), "zip: lists that are walked together have one length, not " + ", ".join(f"{len(walk[key])} ({key})" for key in good))
        elif good and len(good) == len(walk):
            rows = [dict(zip(good, row)) for row in zip(*(walk[key] for key in good))]
            for i, row in enumerate(rows):
                if row in rows[:i]:
                    self.bad(self.at(self.value, "zip"), f"zip: entry {i + 1} equals an earlier one: {json.dumps(row)}")
                for key, value in row.items():
                    self.check_value(walk, key, value)
            for key in sorted({key for row in rows for key in sweep_config.twice(self.keys, row)}):
                self.bad(self.at(self.value, "zip"), f'zip: "{key}" is given twice (its other names count)')
            axes.append((good, rows))
        self.read_list(axes)
        seeds = self.typed("seeds", list, "a list of whole numbers")
        if seeds is not None:
            if not seeds or not all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in seeds) or len(set(seeds)) != len(seeds):
                self.bad(self.at(self.value, "seeds"), "seeds: must be different whole numbers, at least one")
            else:
                axes.append((["seed"], [{"seed": s} for s in seeds]))
        return axes

    def read_list(self, axes):
        entries = self.typed("list", list, "a list of named points")
        if entries is None:
            return
        rows, names = [], set()
        for i, entry in enumerate(entries):
            if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,39}", entry["name"]):
                self.bad(self.at(self.value, "list"), f'list: entry {i + 1} must be an object with a "name" of letters, digits, _ . + -')
                continue
            if entry["name"] in names:
                self.bad(self.at(entry, "name"), f'list: "{entry["name"]}" is there twice')
            names.add(entry["name"])
            row = {}
            for key, value in entry.items():
                if key == "name":
                    continue
                if self.check_key(self.at(entry, key), key, True):
                    self.check_value(entry, key, value)
                    row[key] = value
            for key in sweep_config.twice(self.keys, row):
                self.bad(self.at(entry, "name"), f'list: "{entry["name"]}" gives "{key}" twice (its other names count)')
            rows.append({"list": entry["name"], **row})
        if not entries:
            self.bad(self.at(self.value, "list"), "list: is empty")
        elif rows:
            axes.append((["list"], rows))

    def read_launcher(self):
        given = self.typed("launcher", dict, "an object") or {}
        kind = given.get("kind", "local")
        self.kind = kind if kind in KINDS else "local"
        for field, value in given.items():
            place = self.at(given, field)
            if field not in LAUNCHER:
                self.bad(place, f'launcher: unknown field "{field}"' + sweep_config.nearest(field, LAUNCHER, f" (known: {', '.join(LAUNCHER)})"))
            elif not LAUNCHER[field][2](value):
                self.bad(place, f"launcher: {field}: {json.dumps(value)} is not {LAUNCHER[field][3]}")
            elif self.kind not in LAUNCHER[field][0]:
                self.bad(place, f"launcher: {field}: launcher {self.kind} has no such field (it belongs to {', '.join(LAUNCHER[field][0])})")
        return given


def slug(text, limit):
    return re.sub(r"-{2,}", "-", re.sub(r"[^A-Za-z0-9_.+-]", "-", text)).strip("-.")[:limit].rstrip("-.")


def slug_of_value(key, value, index):
    """A short word for the value of an axis: texts speak for themselves, numbers need the name of their key."""
    if isinstance(value, str) and (word := slug(value, 24)):
        return word
    bare = key.rsplit(".", 1)[-1].lstrip("@")
    if isinstance(value, bool):
        return f"{bare}{int(value)}"
    if isinstance(value, (int, float)):
        return f"{bare}{value:g}" if isinstance(value, float) else f"{bare}{value}"
    return f"{bare}-v{index + 1}"


def expand(ex, base, axes, launcher):
    """The points in order: the last axis turns fastest."""
    fixed = ex.typed("set", dict, "an object of configuration keys") or {}
    for key in fixed:
        if ex.check_key(ex.at(fixed, key), key, False):
            ex.check_value(fixed, key, fixed[key])
    for key in sweep_config.twice(ex.keys, fixed):
        ex.bad(ex.at(ex.value, "set"), f'set: "{key}" is given twice (its other names count)')
    owner = {}  # which axis says a key
    for i, (_, rows) in enumerate(axes):
        for key in {k for row in rows for k in [*(k for k in row if k.startswith("@")), *(name for k, v in keys_of(ex, row) for name in sweep_config.about(k, v))]}:
            if owner.setdefault(key, i) != i:
                ex.bad("", f'"{key}" is said by two axes: {axes[owner[key]][0][0]} and {axes[i][0][0]}; the second would hide the first')
    for key, value in ex.keys.flatten(fixed):
        if any(name in owner and axes[owner[name]][0] != ["list"] for name in sweep_config.about(key, value)):
            ex.bad(ex.at(fixed, key), f'set: "{key}" is varied by an axis, too; take it out of one of them')
    ex.done()
    count = math.prod(len(rows) for _, rows in axes)
    if count > MAX_POINTS:
        raise PlanError([f"{ex.shown}: {count} points; at most {MAX_POINTS} (a folder and a run each)"])

    points = []
    for number, choice in enumerate(itertools.product(*(range(len(rows)) for _, rows in axes)), 1):
        point = Point(number=number)
        keys, fields, parts = [], dict(launcher), []
        for (names, rows), index in zip(axes, choice):
            row = rows[index]
            if names == ["list"]:
                point.name = point.axes["list"] = row["list"]
                parts.append(point.name if len(rows) > 1 else "")
            else:
                point.axes.update(row)
                if len(rows) > 1:
                    parts += [slug_of_value(k, v, index) for k, v in row.items()]
            fields.update({k[1:]: v for k, v in row.items() if k.startswith("@")})
            keys += keys_of(ex, row)
        point.launcher = whole_launcher(ex, fields)
        point.config = sweep_config.merged(ex.keys, [*base, fixed, keys])
        for name in OURS:
            point.config.pop(name, None)
        if point.launcher["kind"] in LOCAL_KINDS:
            # Said in the configuration, so that the run is the same beside others, alone and by hand.
            threads = point.launcher.get("threads") or point.config.get("threads_per_rank") or 1
            point.launcher["threads"] = point.config["threads_per_rank"] = threads
        elif "threads" in point.launcher:
            point.config["threads_per_rank"] = point.launcher["threads"]
        point.keys = dict(ex.keys.flatten(fixed) + keys)
        point.seed = point.config.get("seed", 1234)
        point.id = "-".join([f"{number:03d}", *(slug(part, 40) for part in parts if part)])[:72].rstrip("-.")
        points.append(point)
    ex.done()
    return points


def keys_of(ex, row):
    """[(key, value)] of the configuration that an entry of an axis says; its fields of the launcher and the name of an entry of `list` are none."""
    return ex.keys.flatten({k: v for k, v in row.items() if not k.startswith("@") and k != "list"})


def whole_launcher(ex, fields):
    """Ranks from nodes or the other way round; what a kind cannot do without."""
    out = {"kind": ex.kind, **fields}
    nodes, each = out.get("nodes"), out.get("ranks_per_node")
    if nodes and each:
        if out.setdefault("ranks", nodes * each) != nodes * each:
            ex.bad("", f"launcher: {nodes} nodes with {each} ranks each are {nodes * each} ranks, not {out['ranks']}")
    out.setdefault("ranks", out.get("hosts", 1))
    if ex.kind == "lab":
        out.setdefault("hosts", min(2, out["ranks"]))
        out.setdefault("rate", "1gbit")
        if out["hosts"] > out["ranks"]:
            ex.bad("", f"launcher: {out['hosts']} hosts, but {out['ranks']} ranks: a host without a rank; raise ranks or lower hosts")
    return out


def check_equal(ex, points):
    """Two points that would do the same work are a mistake in the plan."""
    seen = {}
    for point in points:
        other = seen.setdefault(point.identity(), point)
        if other is not point:
            ex.bad("", f"points {other.id} and {point.id} come out equal: an axis changes nothing")
            break


def find_baselines(ex, points):
    """Every point's baseline: the one that has the baseline's values and agrees with it in all other axes."""
    wanted = ex.typed("baseline", dict, "an object of axis values") or {}
    if not wanted:
        return
    place = ex.at(ex.value, "baseline")
    known = list(dict.fromkeys(k for p in points for k in p.axes))
    spelled = {ex.keys.canonical(k) if not k.startswith("@") else k: k for k in known}
    names = {}
    for key, value in wanted.items():
        own = key if key.startswith("@") else "list" if key in ("list", "name") else ex.keys.canonical(key)
        if own not in spelled:
            ex.bad(ex.at(wanted, key), f'baseline: "{key}" is no axis of the plan (axes: {", ".join(known) or "none"})')
        else:
            names[spelled[own]] = value
    ex.done()
    if not any(all(p.axes.get(k) == v for k, v in names.items()) for p in points):
        return ex.bad(place, f"baseline: no point has {json.dumps(wanted)}")
    # Keys of one zip move together, so the baseline's entry fixes them all.
    together = [k for k in ex.value.get("zip") or {}] if any(k in (ex.value.get("zip") or {}) for k in names) else []
    loose = set(names) | set(together)

    def rest(point):
        return json.dumps({k: v for k, v in point.axes.items() if k not in loose}, sort_keys=True)
    baselines = collections.defaultdict(list)
    for point in points:
        if all(point.axes.get(k) == v for k, v in names.items()):
            baselines[rest(point)].append(point)
    for point in points:
        found = baselines.get(rest(point), [])
        point.baseline = found[0].id if found else None


def read(path, shown=None):
    """The Plan of a file. Raises PlanError with everything that is wrong."""
    shown = shown or path
    try:
        value = sweep_json.read(path, shown)
        with open(path, encoding="utf-8-sig") as f:
            text = f.read()
        keys = sweep_config.Keys()
    except (sweep_json.TextError, OSError) as e:
        raise PlanError([str(e)]) from None
    ex = Expansion(shown, value, keys)
    ex.check_top()
    launcher = ex.read_launcher()
    base = ex.read_configs()
    axes = ex.read_axes()
    points = expand(ex, base, axes, launcher)
    check_equal(ex, points)
    find_baselines(ex, points)
    ex.done()
    return Plan(path, text, value, points)
