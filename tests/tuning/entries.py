"""Entries of a journal, as tests need them."""

from kdist.tuning.trials import SearchState


def create(trial, **fields):
    entry = {"id": trial, "values": {"lr": 0.1}, "epochs": 3, "initial_epoch": 0, "parent": None}
    return {"do": "create", "at_s": 0.0, "raw": {}, **entry, **fields}


def start(trial, execution=1, epoch=0, at_s=10.0):
    run_dir = f"/runs/{trial}-{execution}"
    fields = {"id": trial, "execution": execution, "run_dir": run_dir, "epoch": epoch}
    return {"do": "start", "at_s": at_s, "tuner": "local", **fields}


def epoch(trial, number, value, execution=1, name="val_loss"):
    fields = {"id": trial, "execution": execution, "epoch": number, "metrics": {name: value}}
    return {"do": "epoch", "at_s": 11.0, **fields}


def end(trial, status, score=None, reason=None):
    fields = {"id": trial, "status": status, "score": score, "best_epoch": 1, "reason": reason}
    return {"do": "end", "at_s": 15.5, **fields}


def state(*entries):
    return SearchState.of(entries)
