"""Who takes part: tasks, cluster spec, TF_CONFIG, strategy traits. Pure Python."""
