"""Starts searches as their users do, and reads what they leave."""

import csv
import json

from tests.e2e.kit import Run, leftovers, wait_until

DATA = ("data=synthetic", "data.num_examples=300", "data.num_features=8", "data.num_classes=3")
MODEL = ("model.num_classes=3", "model.units=8", "model.layers=1")
OWN_MODEL = ("model._target_=my_trials.build",)
FOLDER = "search"


class Search:
    """A search in the folder of one test."""

    def __init__(self, bench, folder):
        self.bench = bench
        self.folder = folder
        self.path = folder / FOLDER

    def start(self, *argv, **options):
        model = () if OWN_MODEL[0] in argv else MODEL
        return self.bench.start(*DATA, *model, f"hydra.run.dir={FOLDER}", *argv, **options)

    def run(self, *argv, code=0, deadline_s=150, **options):
        """Run a search to its end; nothing of it is left."""
        command = self.start(*argv, **options).wait(deadline_s)
        assert command.code == code
        assert not leftovers(command)
        return command

    @property
    def rows(self):
        with (self.path / "search.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    @property
    def journal(self):
        file = self.path / "search.jsonl"
        lines = file.read_text().split("\n")[:-1] if file.exists() else []
        return [json.loads(line) for line in lines]

    @property
    def result(self):
        return Run(self.path).result

    def trial(self, name):
        return Run(self.path / "trials" / name)

    def entries(self, do, **fields):
        """Return the journal's entries of a kind that have these values."""
        return [
            entry for entry in self.journal if entry["do"] == do and fields.items() <= entry.items()
        ]

    def wait_for(self, num, do, deadline_s=90, **fields):
        """Wait until the journal has so many entries of a kind."""
        wait_until(
            lambda: len(self.entries(do, **fields)) >= num, deadline_s, f"{num} {do} {fields}"
        )
