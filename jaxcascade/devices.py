"""Devices of one process side by side, and several processes as one.

A chunk of seeds is what one device runs at a time. ``shard_map`` gives every device a chunk of its own and nothing
to exchange, so the numbers are those of one device that runs the chunks in turn.
"""

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

SEEDS = "seeds"
EVERYWHERE = PartitionSpec()
_MESSAGE_BYTES = 2**20
_POLL_MS = 2000
_FAILURES = "jaxcascade/failed/"
_ALONE = {"client": None, "process_id": 0, "num_processes": 1}
_gathered = 0


def set_cpu_devices(count: int) -> None:
    """Splits the CPU into ``count`` devices, each with its own chunk of seeds; to be called before any computation.

    Raises:
      ValueError: if the count is below 1, or JAX has started with fewer devices.
    """
    if count < 1:
        raise ValueError(f"devices: expected a whole number >= 1, got {count}")
    with contextlib.suppress(RuntimeError):  # raised once JAX has started; then what it has must do
        jax.config.update("jax_num_cpu_devices", count)


def count_devices(devices: int | None) -> int:
    """How many local devices to use: ``devices``, or all.

    Raises:
      ValueError: if there are fewer.
    """
    there = jax.local_device_count()
    if devices is None:
        return there
    if isinstance(devices, bool) or not 1 <= devices <= there:
        raise ValueError(f"devices: expected a whole number in 1..{there}, the devices there are, got {devices!r}")
    return devices


def seed_mesh(count: int) -> Mesh | None:
    """A mesh of the first ``count`` local devices with one axis, for seeds; None for one device."""
    return Mesh(np.array(jax.local_devices()[:count]), (SEEDS,)) if count > 1 else None


def by_seeds(batched: bool) -> PartitionSpec:
    """How leaves ``[S, ...]``, or ``[G, S, ...]`` if batched, lie on a mesh."""
    return PartitionSpec(None, SEEDS) if batched else PartitionSpec(SEEDS)


def on_each(function: Callable, mesh: Mesh | None, in_specs: tuple, out_specs: Any) -> Callable:
    """The function, run by each device on its own part; without a mesh as it is."""
    if mesh is None:
        return function
    return jax.shard_map(function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)


def place(tree: Any, mesh: Mesh | None, spec: PartitionSpec) -> Any:
    """The pytree laid out on the mesh; without one as it is."""
    return tree if mesh is None else jax.device_put(tree, NamedSharding(mesh, spec))


def parts(tree: Any, mesh: Mesh | None) -> Iterator[Any]:
    """Every device's part of a pytree, on that device and without a copy."""
    for i in range(1 if mesh is None else mesh.size):
        yield tree if mesh is None else jax.tree.map(lambda leaf, i=i: leaf.addressable_shards[i].data, tree)


@contextlib.contextmanager
def processes(coordinator: str | None, count: int | None, index: int | None) -> Iterator[None]:
    """Inside the block this process is one of several that share a study.

    Args:
      coordinator: ``HOST:PORT`` of process 0, ``"auto"`` for what JAX finds out from the cluster (Slurm, Open MPI,
        Kubernetes, Cloud TPU), or None for a process on its own.
      count: number of processes.
      index: this one's number, from 0.

    Raises:
      ValueError: if the three do not go together, or the others cannot be reached.
    """
    if coordinator is None:
        if count is not None or index is not None:
            raise ValueError("coordinator: expected HOST:PORT or auto beside num_processes and process_id, got none")
        yield
        return
    if coordinator != "auto" and (count is None or index is None or not 0 <= index < count):
        raise ValueError(f"process_id: expected one in 0..num_processes-1, got {index} of {count}")
    try:
        jax.distributed.initialize(None if coordinator == "auto" else coordinator, count, index)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"coordinator: expected processes that can be joined, got: {error}") from error
    try:
        _start_devices()
        yield
    except BaseException as error:
        _tell_failure(error)
        raise
    finally:
        jax.distributed.shutdown()


def _start_devices() -> None:
    """Starts this process's devices as those of a process on its own.

    Devices of two processes have nothing to exchange. If they knew of each other they would be numbered across all
    processes, and JAX, which looks kept programs up by these numbers, would compile anew in all processes but one.
    """
    cluster = _cluster()
    joined = {name: getattr(cluster, name) for name in _ALONE}
    try:
        for name, value in _ALONE.items():
            setattr(cluster, name, value)
        jax.local_devices()
    finally:
        for name, value in joined.items():
            setattr(cluster, name, value)


def share() -> tuple[int, int]:
    """This process's number, from 0, and how many share a study."""
    cluster = _cluster()
    return cluster.process_id, cluster.num_processes


def gather(work: Callable[[], dict[str, np.ndarray]]) -> list[dict[str, np.ndarray]]:
    """What ``work`` gives in every process, in order of the processes.

    The arrays travel through the coordinator's key-value store, byte for byte: a collective would need the same
    shapes everywhere, turn float64 into float32 and give up on a process that takes an hour longer.

    Raises:
      Whatever ``work`` raises here; OSError if another process failed, here or anywhere inside ``processes``.
    """
    global _gathered
    own, count = share()
    if count == 1:
        return [work()]
    try:
        arrays = work()
    except Exception as error:
        _tell_failure(error)
        raise
    client, key = _cluster().client, f"jaxcascade/{_gathered}"
    stream = io.BytesIO()
    np.savez(stream, **arrays)  # type: ignore[arg-type]
    data = stream.getvalue()
    pieces = [data[i : i + _MESSAGE_BYTES] for i in range(0, len(data), _MESSAGE_BYTES)]
    for i, piece in enumerate(pieces):
        client.key_value_set_bytes(f"{key}/{own}/{i}", piece)
    client.key_value_set(f"{key}/{own}/count", str(len(pieces)))
    found = []
    for process in range(count):
        length = _await_count(client, f"{key}/{process}/count")
        whole = b"".join(client.blocking_key_value_get_bytes(f"{key}/{process}/{i}", _POLL_MS) for i in range(length))
        with np.load(io.BytesIO(whole), allow_pickle=False) as file:
            found.append({name: file[name] for name in file.files})
    # Whoever gathers now has read what was gathered before.
    client.key_value_delete(f"jaxcascade/{_gathered - 1}/{own}/")
    _gathered += 1
    return found


def _cluster() -> Any:
    from jax._src.distributed import global_state  # JAX has no public way to the key-value store

    return global_state


def _await_count(client: Any, key: str) -> int:
    """The number under the key once it is there, however long that takes, unless a process fails."""
    while True:
        try:
            return int(client.blocking_key_value_get(key, _POLL_MS))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise OSError(f"coordinator: expected word from the other processes, got: {error}") from error
        failures = client.key_value_dir_get(_FAILURES)
        if failures:
            raise OSError(failures[0][1])


def _tell_failure(error: BaseException) -> None:
    """Lets the other processes know that this one will not answer."""
    with contextlib.suppress(jax.errors.JaxRuntimeError):
        own, _ = share()
        _cluster().client.key_value_set(f"{_FAILURES}{own}", f"process {own} failed: {error}", allow_overwrite=True)
