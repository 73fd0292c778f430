"""Which variables share a bucket, and which server holds which bucket: tables."""

import pytest

from kdist.distribute.buckets.bucket_plan import plan_buckets
from kdist.distribute.buckets.layout import VariableInfo
from kdist.errors import ConfigError


def infos(*shapes, **options):
    return [
        VariableInfo(
            index=i, path=f"v{i}", shape=shape, dtype="float32", item_bytes=4,
            **{name: values[i] for name, values in options.items()},
        )
        for i, shape in enumerate(shapes)
    ]  # fmt: skip


def members(layout):
    return [[m.variable_index for m in bucket.members] for bucket in layout.buckets]


@pytest.mark.parametrize(
    ("variables", "options", "expected"),
    [
        (infos((2, 3), (3,), (3, 2)), {"can_flatten": True}, [[0, 1, 2]]),
        (infos((2, 3), (3,), (3, 2)), {"can_flatten": False}, [[0], [1], [2]]),
        (
            infos((2,), (3,), (4,), needs_own_bucket=[False, True, False]),
            {"can_flatten": True},
            [[0, 2], [1]],
        ),
        (
            infos((2,), (3,), (4,), has_weight_decay=[True, False, True]),
            {"can_flatten": True},
            [[0, 2], [1]],
        ),
        (
            infos((9, 2), (3,), has_sparse_gradient=[True, False]),
            {"can_flatten": True},
            [[0], [1]],
        ),
        (
            infos((100,), (3,), (4,)),
            {"can_flatten": True, "large_variable_bytes": 400},
            [[0], [1, 2]],
        ),
    ],
)
def test_what_shares_a_bucket(variables, options, expected):
    assert members(plan_buckets(variables, **options)) == expected


def test_members_lie_side_by_side_in_order():
    (bucket,) = plan_buckets(infos((2, 3), (3,), ()), can_flatten=True).buckets
    assert [(m.offset, m.size) for m in bucket.members] == [(0, 6), (6, 3), (9, 1)]
    assert (bucket.size, bucket.num_bytes) == (10, 40)


@pytest.mark.parametrize(
    ("placement", "expected"),
    [("greedy_bytes", (400, 440)), ("round_robin", (560, 280))],
)
def test_placement_deals_bytes_to_servers(placement, expected):
    variables = infos((100,), (50,), (40,), (20,))
    layout = plan_buckets(variables, can_flatten=True, num_servers=2, placement=placement)
    assert layout.bytes_per_server() == expected
    owned = [index for server in range(2) for index in layout.of_server(server)]
    assert sorted(owned) == list(range(len(layout.buckets)))


def test_unknown_placement_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError, match=r"greedy_bytes, round_robin.*'best'"):
        plan_buckets(infos((1,)), can_flatten=True, placement="best")


@pytest.mark.parametrize(
    ("variables", "options", "expected"),
    [
        (infos((100, 1)), {}, [None]),
        (infos((101, 1)), {}, [(0, 50, 1), (50, 101, 1)]),
        (infos((500, 1)), {"num_servers": 3}, [(0, 166, 1), (166, 333, 1), (333, 500, 1)]),
        (infos((1, 500)), {}, [None]),
        (infos((500, 1)), {"num_servers": 1}, [None]),
        (infos((500, 1)), {"can_flatten": False}, [None]),
        (infos((500, 1), needs_own_bucket=[True]), {}, [None]),
        (infos((500, 1), has_sparse_gradient=[True]), {}, [(0, 500, 2), (1, 500, 2)]),
        (infos((5, 1), is_by_rows=[True]), {"can_flatten": False}, [(0, 5, 2), (1, 5, 2)]),
        (infos((1, 1), is_by_rows=[True]), {}, [None]),
    ],
)
def test_large_variables_lie_in_pieces(variables, options, expected):
    """Blocks of rows on one server each; rows of tables are dealt in turn."""
    options = {"can_flatten": True, "num_servers": 2, "partition_bytes": 400, **options}
    layout = plan_buckets(variables, **options)
    pieces = [bucket.members[0].rows for bucket in layout.buckets]
    expected = [slice(*e) if isinstance(e, tuple) else e for e in expected]
    assert [piece and piece.as_slice for piece in pieces] == expected
    if len(pieces) > 1:
        assert {b.server_index for b in layout.buckets} == set(range(options["num_servers"]))


def fullest_to_mean(placement, variables, num_servers):
    layout = plan_buckets(variables, can_flatten=True, num_servers=num_servers, placement=placement)
    loads = layout.bytes_per_server()
    return max(loads) / (sum(loads) / num_servers)


@pytest.mark.parametrize("num_servers", [2, 4])
def test_greedy_placement_fills_servers_evenly_where_round_robin_does_not(num_servers):
    """Many small variables and a few large ones; kernels and biases alternate."""
    small = [(64, 64), (64,)] * 20
    large = [(512, 512), (512,), (512, 600), (600,), (600, 512), (512,), (512, 512), (512,)]
    variables = infos(*small, *large)
    assert fullest_to_mean("greedy_bytes", variables, num_servers) < 1.1
    assert fullest_to_mean("round_robin", variables, num_servers) > 1.2
