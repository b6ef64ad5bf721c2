"""The output laws of the synthetic family: sampled without rejection, and projected on one dimension.

A law is that of a vector xi of independent symmetric coordinates, for two of the three laws cut off outside a
ball that holds 99 % of the mass.
"""

import math
from functools import lru_cache

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcascade.kernels.design_matrix import row_sums

LAWS = ("uniform", "truncated_gaussian", "truncated_student")
KEPT = 0.99  # share of the untruncated law inside the ball

_FREEDOM = 5  # Student's t; scaled by sqrt(.6) to unit variance
_RADIUS_POINTS = 4097
_POOL = 4096
_STUDENT_SAMPLE = 2**17
_GRID = 2049
_FREQUENCIES, _LARGEST_FREQUENCY = 2048, 200.0
_FINE = 16


def num_uniforms(law: str, size: int) -> int:
    """Uniform numbers that one output of ``size`` coordinates takes."""
    return {"uniform": size, "truncated_gaussian": size + 1, "truncated_student": 2 * size + 1}[law]


@lru_cache
def radius(law: str, size: int) -> float:
    """Radius of the ball that the law is cut off at; infinite for the uniform law.

    The square root of the .99 quantile of a chi-square law, or of the sum of squares of ``size`` Student
    coordinates.
    """
    if law == "uniform":
        return math.inf
    if law == "truncated_gaussian":
        grid, mass = _radius_law(size)
        return float(np.interp(KEPT, mass, grid))
    # The law of a sum of squares by convolution on a grid, which is a power of its Fourier transform.
    spacing, points = 0.01, 2**19
    edges = np.sqrt(np.maximum(np.arange(points + 1) - 0.5, 0) * spacing / (0.6 * _FREEDOM))
    below = (np.arctan(edges) + edges / (1 + edges**2) * (1 + 2 / (3 * (1 + edges**2)))) * 2 / math.pi
    total = np.fft.irfft(np.fft.rfft(np.diff(below)) ** size, points)
    return math.sqrt(spacing * float(np.interp(KEPT, np.cumsum(total), np.arange(points) + 0.5)))


def _radius_law(size):
    """Radii and the distribution function of ``|N(0, I)|`` at them."""
    grid = np.linspace(0, math.sqrt(size) + 12, 200_001)
    with np.errstate(divide="ignore"):
        log = (size - 1) * np.log(grid) - grid**2 / 2 if size > 1 else -(grid**2) / 2
    density = np.exp(log - np.max(log))
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return grid, mass / mass[-1]


@lru_cache
def _radius_quantiles(size):
    """Quantiles ``[4097]`` of the truncated Gaussian's radius at evenly spaced probabilities."""
    grid, mass = _radius_law(size)
    keep = np.append(True, np.diff(mass) > 0)
    return np.interp(np.linspace(0, KEPT, _RADIUS_POINTS), mass[keep], grid[keep])


def tables(law: str, size: int) -> jax.Array:
    """What sampling looks up: radius quantiles, or a pool ``[4096, size]`` of vectors inside the ball."""
    if law == "uniform":
        return jnp.zeros((0,))
    if law == "truncated_gaussian":
        return jnp.asarray(_radius_quantiles(size), float)
    uniforms = _uniforms(jax.random.key(20), (_POOL + _POOL // 8, 2 * size))
    candidates = _student(uniforms[:, :size], uniforms[:, size:])
    outside = jnp.sum(candidates**2, axis=-1) > radius(law, size) ** 2
    return candidates[jnp.argsort(outside, stable=True)[:_POOL]]


def sample(law: str, table: jax.Array, uniforms: jax.Array) -> jax.Array:
    """Outputs ``xi [..., size]`` from uniform numbers in (-1, 1), ``[..., num_uniforms]``.

    The Gaussian is drawn whole; outside the ball its direction, which is independent of the radius, is kept
    and the radius drawn again from the truncated law by its quantiles. A Student vector outside the ball (one
    in a hundred) takes the absolute values of one of 4096 vectors inside, and keeps its own signs, which are
    independent of them: the law is exact but for the finite pool behind a hundredth of its mass.

    Args:
      law: name of the law, static.
      table: from ``tables``.
      uniforms: independent, strictly between -1 and 1.

    Source: arXiv 2606.07392, Section 6; Student coordinates by the polar method of Bailey (1994).
    """
    if law == "uniform":
        return uniforms
    if law == "truncated_gaussian":
        normal = math.sqrt(2) * lax.erf_inv(uniforms[..., :-1])
        length = jnp.sqrt(row_sums(normal**2))
        place = (uniforms[..., -1] + 1) / 2 * (_RADIUS_POINTS - 1)
        floor = jnp.minimum(place.astype(jnp.int32), _RADIUS_POINTS - 2)
        again = table[floor] + (place - floor) * (table[floor + 1] - table[floor])
        scale = jnp.where(length > radius(law, normal.shape[-1]), again / length, 1)
        return normal * scale[..., None]
    size = uniforms.shape[-1] // 2
    own = _student(uniforms[..., :size], uniforms[..., size : 2 * size])
    index = jnp.minimum(((uniforms[..., -1] + 1) / 2 * _POOL).astype(jnp.int32), _POOL - 1)
    outside = jnp.sum(own**2, axis=-1, keepdims=True) > radius(law, size) ** 2
    return jnp.where(outside, jnp.copysign(table[index], own), own)


def _student(first, second):
    """Student coordinates of unit variance: ``sqrt(3 (U^-.4 - 1)) cos(2 pi V)``."""
    log = jnp.log((first + 1) / 2)
    return jnp.sqrt(3 * jnp.maximum(jnp.expm1(-0.4 * log), 0)) * jnp.cos(math.pi * second)


def _uniforms(key, shape):
    """Uniform numbers strictly between -1 and 1."""
    dtype = jnp.result_type(float)
    return jax.random.uniform(key, shape, dtype, minval=np.nextafter(dtype.type(-1), dtype.type(0)), maxval=1)


def uniforms(key: jax.Array, count: int) -> jax.Array:
    """``[count]`` uniform numbers strictly between -1 and 1, in the default float type."""
    return _uniforms(key, (count,))


def sample_many(law: str, size: int, key: jax.Array, count: int) -> jax.Array:
    """``[count, size]`` outputs, for use outside the simulation."""
    return sample(law, tables(law, size), _uniforms(key, (count, num_uniforms(law, size))))


def projection_nodes(law: str, direction: jax.Array, count: int) -> jax.Array:
    """Nodes ``[count]`` of equal probability for ``direction . xi``, rising: means over its quantile bins.

    The distribution function comes from an integral: of the density for the Gaussian, of the characteristic
    function for the other two; for the Student law the part outside the ball is taken off as estimated from
    2^17 fixed vectors.

    Args:
      law: name of the law, static.
      direction: ``[size]``.
      count: number of nodes, static.

    Source: arXiv 2606.07392, Section 6 (computation of the oracle indices).
    """
    size = direction.shape[0]
    length = jnp.sqrt(jnp.sum(direction**2))
    unit = direction / jnp.where(length > 0, length, 1)
    if law == "truncated_gaussian":
        grid, mass = _gaussian_projection(size)
        grid, mass = jnp.asarray(grid, float), jnp.asarray(mass, float)
    else:
        reach = radius(law, size) if law == "truncated_student" else min(8 / math.sqrt(3), math.sqrt(size))
        grid = jnp.linspace(-reach, reach, _GRID)
        mass = _projection_mass(law, unit, grid)
        if law == "truncated_student":
            mass = _without_outside(mass, unit, grid)
        mass = lax.cummax(jnp.clip(mass, 0, 1))
    share = (jnp.arange(count * _FINE) + 0.5) / (count * _FINE)
    fine = jnp.interp(share, mass, grid)
    return jnp.mean(fine.reshape(count, _FINE), axis=-1) * length


@lru_cache
def _gaussian_projection(size):
    """Grid and distribution function of a coordinate of the truncated Gaussian."""
    edge = radius("truncated_gaussian", size)
    grid = np.linspace(-edge, edge, 8193)
    inside = np.ones_like(grid)
    if size > 1:
        radii, mass = _radius_law(size - 1)
        inside = np.interp(np.sqrt(np.maximum(edge**2 - grid**2, 0)), radii, mass)
    density = np.exp(-(grid**2) / 2) * inside
    mass = np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2)])
    return grid, mass / mass[-1]


def _projection_mass(law, unit, grid):
    """Distribution function of ``unit . xi`` without truncation: ``1/2 + (1/pi) int sin(u z)/u phi(u) du``."""
    spacing = _LARGEST_FREQUENCY / _FREQUENCIES
    frequency = (jnp.arange(_FREQUENCIES) + 0.5) * spacing

    def log_character(scale):
        # Coordinate by coordinate, so that no [frequencies, coordinates] array is needed.
        angle = frequency * jnp.abs(scale)
        if law == "uniform":
            return jnp.sinc(angle / math.pi)
        return (1 + math.sqrt(3) * angle + angle**2) * jnp.exp(-math.sqrt(3) * angle)

    character = lax.fori_loop(
        0, unit.shape[0], lambda j, product: product * log_character(unit[j]), jnp.ones_like(frequency)
    )
    return 0.5 + jnp.sin(grid[:, None] * frequency) @ (character / frequency) * (spacing / math.pi)


def _without_outside(mass, unit, grid):
    """The distribution function given that the Student vector lies inside its ball."""
    size, blocks = unit.shape[0], 16
    edge = radius("truncated_student", size)

    def block(key):
        draws = _uniforms(key, (_STUDENT_SAMPLE // blocks, 2 * size))
        xi = _student(draws[:, :size], draws[:, size:])
        return jnp.where(jnp.sum(xi**2, axis=-1) > edge**2, xi @ unit, jnp.inf)

    outside = lax.map(block, jax.random.split(jax.random.key(21), blocks)).ravel()
    total = jnp.mean(jnp.isfinite(outside))
    below = jnp.searchsorted(jnp.sort(outside), grid, side="right") / outside.shape[0]
    below = (below + total - below[::-1]) / 2  # the law is symmetric
    return (mass - below) / (1 - total)
