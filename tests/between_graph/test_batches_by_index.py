"""What a client hands in of a PyDataset: batches by index, without a cluster."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kdist.distribute.between_graph.local_data import IndexedBatches
from kdist.distribute.data import DataSettings, make_source
from kdist.distribute.shares import WorkerShare
from kdist.errors import TrainingError


class Widening(keras.utils.PyDataset):
    """Five batches, the last of them with a column more."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return np.full([3, 2 + (index == 4)], index, "float32"), np.zeros([3], "int32")


def test_a_late_batch_of_another_shape_is_an_error_of_the_run():
    source = make_source(Widening(), settings=DataSettings(batch_size=3, shuffle=False))
    with tf.Graph().as_default():
        batches = IndexedBatches(source, WorkerShare())
    batches.expect(4)
    assert [batches.fed(index)[0][0, 0] for index in range(4)] == [0, 1, 2, 3]
    with pytest.raises(TrainingError, match=r"must look alike. Received: batch 4 .*\(3, 3\)"):
        batches.fed(4)
