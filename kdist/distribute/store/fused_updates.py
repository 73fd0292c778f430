"""Optimizers that update a large variable by one kernel, not by a dozen passes over its memory.

TensorFlow has a kernel for the rules of Keras' SGD, Adam and AdamW; Keras writes the same rules
out, an operation and a temporary for each sum and product. A clone of a model's optimizer is of a
class from here where there is one: clipping, weight decay, accumulation and averages stay Keras'
own. Equal to Keras' update up to rounding (tests/engine/test_fused_updates.py).
"""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from kdist.distribute import keras_adapter
from kdist.distribute.buckets.layout import LARGE_VARIABLE_BYTES

# Smaller ones lie in the cache, where passes are cheap and waking threads for a kernel is not.
FUSED_FROM_BYTES = LARGE_VARIABLE_BYTES


def _is_fused(variable: Any, gradient: Any) -> bool:
    if isinstance(gradient, tf.IndexedSlices) or variable.dtype not in (tf.float32, tf.float64):
        return False
    return variable.shape.num_elements() * variable.dtype.size >= FUSED_FROM_BYTES


class FusedSGD(keras.optimizers.SGD):
    """SGD by `ResourceApplyGradientDescent`, with momentum by `ResourceApplyKerasMomentum`."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable: called by Keras on the device that holds it."""
        if not _is_fused(variable, gradient):
            super().update_step(gradient, variable, learning_rate)
            return
        rate = tf.cast(learning_rate, variable.dtype)
        gradient = tf.cast(gradient, variable.dtype)
        if not self.momentum:
            tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
            return
        (velocity,) = keras_adapter.slots_of(self, variable, "momentums")
        tf.raw_ops.ResourceApplyKerasMomentum(
            var=variable.handle,
            accum=velocity.handle,
            lr=rate,
            grad=gradient,
            momentum=tf.cast(self.momentum, variable.dtype),
            use_nesterov=self.nesterov,
        )


class FusedAdam(keras.optimizers.Adam):
    """Adam by `ResourceApplyAdam`, in the order of Kingma and Ba (2015), end of section 2."""

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Update one variable: called by Keras on the device that holds it."""
        if self.amsgrad or not _is_fused(variable, gradient):
            super().update_step(gradient, variable, learning_rate)
            return
        dtype = variable.dtype
        iterations: Any = self.iterations
        step = tf.cast(iterations + 1, dtype)
        powers = [tf.pow(tf.cast(beta, dtype), step) for beta in (self.beta_1, self.beta_2)]
        beta_2 = tf.constant(self.beta_2, dtype)
        mean, square = keras_adapter.slots_of(self, variable, "_momentums", "_velocities")
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=mean.handle,
            v=square.handle,
            beta1_power=powers[0],
            beta2_power=powers[1],
            lr=tf.cast(learning_rate, dtype) * tf.cast(self._correction(beta_2), dtype),
            beta1=tf.constant(self.beta_1, dtype),
            beta2=beta_2,
            epsilon=tf.constant(self.epsilon, dtype),
            grad=tf.cast(gradient, dtype),
        )

    def _correction(self, rounded: tf.Tensor) -> tf.Tensor:
        """Return what the rate is multiplied with for a beta_2 that was rounded, float64 scalar.

        Keras takes 1 - beta_2 before it rounds, the kernel afterwards: 0.001 becomes 0.00099999.
        So the kernel's mean of squares of n steps is smaller by (1 - rounded^n) / (1 - beta_2^n).
        """
        iterations: Any = self.iterations
        step = tf.cast(iterations + 1, tf.float64)
        betas = (tf.cast(rounded, tf.float64), tf.constant(self.beta_2, tf.float64))
        smaller, larger = (1 - tf.pow(beta, step) for beta in betas)
        return tf.sqrt(smaller / larger)


class FusedAdamW(FusedAdam, keras.optimizers.AdamW):
    """AdamW: Keras takes the weight decay off before the update."""


_FUSED: Mapping[type, type] = {
    keras.optimizers.SGD: FusedSGD,
    keras.optimizers.Adam: FusedAdam,
    keras.optimizers.AdamW: FusedAdamW,
}
_PUBLIC: Mapping[type, type] = {fused: public for public, fused in _FUSED.items()}


def fused_class(kind: type) -> type:
    """Return the class that does what Keras' class `kind` does, or `kind` if there is none."""
    return _FUSED.get(kind, kind)


def public_class(kind: type) -> type:
    """Return the class of Keras that `fused_class` was asked for."""
    return _PUBLIC.get(kind, kind)
