"""The fixed-capacity queue against collections.deque."""

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcascade.kernels import Fifo, fifo_init, fifo_pop, fifo_push
from tests.conftest import compilations, quick_jit

TURNS, LANES = 24, 3
turns = st.lists(st.tuples(st.booleans(), st.integers(-(2**31), 2**31 - 1), st.integers(-2, 9)), max_size=TURNS)
configurations = st.sampled_from([(1, 1), (1, 3), (2, 1), (3, 3), (5, 8)])


@quick_jit(static_argnames=("capacity", "limit"))
def run(enabled, value, count, capacity, limit):
    """Pushes and pops of every lane, ``[LANES, TURNS]``, under vmap and scan; records are pytrees."""

    def turn(queue, inputs):
        enabled, value, count = inputs
        queue, taken = fifo_push(queue, {"value": value, "pair": jnp.stack([value, ~value])}, enabled)
        queue, records, served = fifo_pop(queue, count, limit)
        return queue, (taken, records, served, queue.size)

    def lane(*inputs):
        empty = fifo_init(capacity, {"value": jnp.int32(0), "pair": jnp.zeros(2, jnp.int32)})
        return jax.lax.scan(turn, empty, inputs)

    return jax.vmap(lane)(enabled, value, count)


def expected(lane, capacity, limit):
    """What a deque does: (taken, values that left, length after) of every turn."""
    waiting = deque()
    for enabled, value, count in lane:
        taken = enabled and len(waiting) < capacity
        if taken:
            waiting.append(value)
        left = [waiting.popleft() for _ in range(min(max(count, 0), limit, len(waiting)))]
        yield taken, left, len(waiting)


@given(st.tuples(*[turns] * LANES), configurations)
def test_queue_behaves_like_a_deque(lanes, configuration):
    capacity, limit = configuration
    idle = (False, 0, 0)
    padded = [lane + [idle] * (TURNS - len(lane)) for lane in lanes]
    enabled, value, count = (np.array([[turn[i] for turn in lane] for lane in padded]) for i in range(3))
    queue, (taken, records, served, size) = jax.device_get(
        run(enabled, value.astype(np.int32), count.astype(np.int32), capacity, limit)
    )
    for lane in range(LANES):
        for turn, (was_taken, left, length) in enumerate(expected(padded[lane], capacity, limit)):
            at = lane, turn
            assert taken[at] == was_taken
            assert size[at] == length
            assert served[at].tolist() == [True] * len(left) + [False] * (limit - len(left))
            assert records["value"][at][: len(left)].tolist() == left
            assert records["pair"][at][: len(left)].tolist() == [[v, ~v] for v in left]
    assert np.all((queue.head >= 0) & (queue.head < capacity))


def test_a_full_queue_refuses_and_keeps_what_waits():
    queue = fifo_init(2, jnp.float32(0))
    for value, fits in ((1.5, True), (2.5, True), (3.5, False), (4.5, False)):
        queue, taken = fifo_push(queue, value, True)
        assert bool(taken) is fits
    queue, records, served = fifo_pop(queue, 9, 3)
    np.testing.assert_array_equal(served, [True, True, False])
    np.testing.assert_array_equal(records[:2], [1.5, 2.5])
    assert int(queue.size) == 0


def test_a_disabled_push_changes_nothing_even_with_nan():
    queue, _ = fifo_push(fifo_init(1, jnp.float32(0)), 7.0, True)
    _, served, _ = fifo_pop(queue, 1, 1)
    after, taken = fifo_push(queue, jnp.nan, False)
    assert not taken
    jax.tree.map(np.testing.assert_array_equal, after, queue)
    np.testing.assert_array_equal(served, [7.0])


def test_slots_take_shape_and_type_of_the_record(float_mode):
    record = {"flag": True, "number": 1.0, "vector": np.zeros((2, 3), np.int8)}
    queue = fifo_init(4, record)
    assert isinstance(queue, Fifo)
    shapes = {name: (slot.shape, str(slot.dtype)) for name, slot in queue.slots.items()}
    assert shapes == {"flag": ((4,), "bool"), "number": ((4,), float_mode), "vector": ((4, 2, 3), "int8")}
    pushed, _ = fifo_push(queue, record, True)
    assert jax.tree.map(jnp.result_type, pushed) == jax.tree.map(jnp.result_type, queue)
    assert pushed.head.dtype == pushed.size.dtype == jnp.int32


@pytest.mark.parametrize("capacity", [0, -3])
def test_capacity_below_one_is_refused(capacity):
    with pytest.raises(ValueError, match=f"capacity: expected at least 1 slot, got {capacity}"):
        fifo_init(capacity, jnp.int32(0))


def test_other_numbers_compile_nothing():
    numbers = np.zeros((LANES, TURNS), np.int32)
    jax.block_until_ready(run(numbers > 0, numbers, numbers, 2, 1))
    with compilations() as compiled:
        jax.block_until_ready(run(numbers == 0, numbers + 5, numbers + 1, 2, 1))
    assert not compiled
