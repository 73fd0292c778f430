"""What a traced step may not hold where another process runs it: Python functions.

`tf.numpy_function` and `tf.py_function` put a name into the graph, under which only the process
that traced it knows the function.
"""

from typing import Any

from kdist.errors import ConfigError

_PYTHON_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc")


def refuse_python_calls(concrete: Any) -> None:
    """Refuse a step that calls a Python function while it runs.

    Args:
        concrete: The traced step.

    Raises:
        ConfigError: Naming the operations, whose names begin with those of their layers.
    """
    content = concrete.graph.as_graph_def()
    nodes = [*content.node, *(n for each in content.library.function for n in each.node_def)]
    found = sorted({node.name for node in nodes if node.op in _PYTHON_OPS})
    if found:
        raise ConfigError(
            "The model, its loss or a metric calls a Python function (tf.numpy_function or "
            "tf.py_function), which workers of parameter servers cannot run. Received: "
            f"{', '.join(found[:3])}{', ...' if len(found) > 3 else ''}. Use operations of "
            "keras.ops or TensorFlow, or a strategy without parameter servers."
        )
