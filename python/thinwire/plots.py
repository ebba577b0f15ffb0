"""Plots of runs with matplotlib. Each function draws into `ax`, or into a new figure, and returns the axes."""
import numpy
from matplotlib import pyplot

LABELS = {"step": "step", "tokens": "tokens", "wall_s": "seconds since the first start"}


def axes_of(ax):
    return pyplot.subplots(figsize=(8, 4.5), constrained_layout=True)[1] if ax is None else ax


def loss(runs, x="step", smooth=0, evaluations=True, ax=None):
    """Training loss of a run or several along "step", "tokens" or "wall_s", the mean of `smooth` steps where that is not 0; evaluation loss as dashed lines with points."""
    ax = axes_of(ax)
    for i, run in enumerate(runs if isinstance(runs, (list, tuple)) else [runs]):
        color = f"C{i % 10}"
        if "loss" in run.metrics:
            values = run.metrics["loss"].rolling(smooth, min_periods=1, center=True).mean() if smooth else run.metrics["loss"]
            ax.plot(run.axis(run.metrics, x), values, color=color, label=run.name)
        if evaluations and len(run.evaluations):
            valid = run.evaluations[run.evaluations.index.get_level_values("split") == "valid"]
            ax.plot(run.axis(valid, x), valid["eval_loss"], "o--", color=color, markersize=4, label=f"{run.name}, evaluation")
    ax.set(xlabel=LABELS[x], ylabel="loss")
    if ax.lines:
        ax.legend()
    return ax


def step_time(run, ax=None):
    """Where the milliseconds of a step go, stacked; the uppermost part is time that no part claims."""
    ax = axes_of(ax)
    # These lie between steps, not in them.
    parts = [c for c in run.metrics if c.startswith("time_ms.") and c not in ("time_ms.evaluation", "time_ms.checkpoint")]
    if parts and "step_ms" in run.metrics:
        values = run.metrics[parts].fillna(0).to_numpy(dtype=float).T
        rest = numpy.maximum(0, run.metrics["step_ms"].to_numpy(dtype=float) - values.sum(axis=0))
        ax.stackplot(run.axis(run.metrics, "step"), *values, rest, labels=[p.partition(".")[2] for p in parts] + ["rest"])
        ax.legend(loc="upper right")
    ax.set(xlabel="step", ylabel="ms")
    return ax


def site_bytes(run, ax=None):
    """Bytes that all ranks send in a step (those of rank 0, where lines do not say), by site, mean over the run; beside them the same uncompressed."""
    ax = axes_of(ax)
    total = "_total" if "wire_bytes_total" in run.sites else ""
    if len(run.sites):
        mean = run.sites.reindex(columns=[f"wire_bytes{total}", f"logical_bytes{total}"]).astype(float).groupby(level="site").sum() / len(run.metrics)
        places = numpy.arange(len(mean))
        ax.barh(places - 0.2, mean[f"logical_bytes{total}"] / 1e6, 0.4, color="lightgray", label="uncompressed")
        ax.barh(places + 0.2, mean[f"wire_bytes{total}"] / 1e6, 0.4, label="sent")
        ax.set_yticks(places, list(mean.index))
        ax.legend()
    ax.set(xlabel="MB per step, all ranks" if total else "MB per step, rank 0")
    return ax
