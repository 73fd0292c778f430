"""What `python -m kdist --help` prints."""

from collections.abc import Mapping

_COMMANDS = (
    ("", "train the default model on whatever this machine has"),
    ("+strategy=mirrored", "on all devices of this machine"),
    ("+strategy=multiworker cluster.workers=2", "on synchronous workers"),
    ("+strategy=ps cluster.workers=2 cluster.ps=2", "on asynchronous parameter servers"),
    ("model._target_=my_pkg.build data._target_=my_pkg.load", "your own functions"),
    ("-m strategy=single,ps optimizer.learning_rate=1e-2,1e-3", "a sweep: every combination"),
    ("+tuner=bayesian tuner.max_trials=20", "a search; tuner.space says over what"),
    ("+strategy=ps command=plan", "show tasks, addresses and devices; start nothing"),
    ("command=evaluate run=outputs/<date>/<time>", "a finished run (also predict, export)"),
    ("--config-dir outputs/<date>/<time> --config-name config", "repeat a run (not of kdist.fit)"),
)


def help_text(groups: Mapping[str, tuple[str, ...]]) -> str:
    """Return the help text: commands, groups and flags."""
    width = max(len(arguments) for arguments, _ in _COMMANDS)
    commands = [f"  python -m kdist {typed:<{width}}  {says}".rstrip() for typed, says in _COMMANDS]
    name_width = max((len(name) for name in groups), default=0)
    choices = [f"  {name:<{name_width}}  {', '.join(options)}" for name, options in groups.items()]
    return "\n".join(
        [
            "kdist trains one Keras 3 model in every way TensorFlow can distribute it.",
            "",
            "The ten most useful commands:",
            *commands,
            "",
            "Groups (group=option; a plus in front changes nothing):",
            *choices,
            "",
            "Every other setting is key=value, as in epochs=5 data.batch_size=128 callbacks=null.",
            "++section.argument=value passes a further argument to a section's _target_.",
            "",
            "Flags:",
            "  -m, --multirun        run every combination of comma-separated values",
            "  --cfg job             print the composed configuration, and all keys there are",
            "  --config-dir FOLDER   look for configuration files there, too",
            "  --config-name NAME    start from that configuration file",
            "  --info, --hydra-help, --shell-completion   as in Hydra",
            "  --version, --help",
            "",
            "Exit codes: 0 done; 1 training failed; 2 wrong configuration or environment;",
            "75 start this task again; 130, 143 stopped by a signal.",
            "",
        ]
    )
