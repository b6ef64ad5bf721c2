"""Slow, plain NumPy reference of the cascade system (arXiv 2606.07392), the ground truth of the tests.

Boxes are opened one at a time in a Python loop, estimators are refitted by dense Newton steps with step
halving until the gradient vanishes, inverse matrices come from ``numpy.linalg``. It shares no code with the
package.
"""

import itertools
import math
from functools import cache

import numpy as np

LARGEST_MEAN = 1 - 1e-6  # atanh of a mean must be finite


# ----------------------------------------------------------------------------------------------------------
# Weitzman's rule


def reservation_index(values, probabilities, cost, steps=200):
    """sigma with E[(v - sigma)^+] = cost, by bisection."""
    low, high = float(np.min(values)) - cost - 1.0, float(np.max(values))
    for _ in range(steps):
        middle = (low + high) / 2
        if float(np.dot(probabilities, np.maximum(values - middle, 0))) > cost:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def play(order, threshold, values, stop_on_last=False, deploy_last=False):
    """The boxes opened, in order, and the one deployed.

    Boxes are tried in decreasing ``order`` (ties to the lowest); the first is always opened, another one
    only while the best value so far (or the last one) is below its threshold.
    """
    queue = sorted(range(len(order)), key=lambda a: (-order[a], a))
    opened = [queue[0]]
    for box in queue[1:]:
        held = values[opened[-1]] if stop_on_last else max(values[a] for a in opened)
        if not held < threshold[box]:
            break
        opened.append(box)
    best = max(sorted(opened), key=lambda a: values[a])
    return opened, (opened[-1] if deploy_last else best)


def best_adaptive_value(boxes):
    """Greatest expected utility over all adaptive policies that open at least one box.

    Args:
      boxes: list of (probabilities, values, costs), one triple of lists per box.
    """

    @cache
    def value(closed, best):
        options = [] if best is None else [best]
        for box in closed:
            rest = tuple(b for b in closed if b != box)
            total = 0.0
            for probability, v, cost in zip(*boxes[box], strict=True):
                total += probability * (value(rest, v if best is None else max(best, v)) - cost)
            options.append(total)
        return max(options)

    return value(tuple(range(len(boxes))), None)


def weitzman_value(boxes):
    """Expected utility of Weitzman's rule, by enumeration of all outputs."""
    index = [reservation_index(np.array(v), np.array(p), float(np.dot(p, c))) for p, v, c in boxes]
    total = 0.0
    for outputs in itertools.product(*(range(len(p)) for p, _, _ in boxes)):
        probability = math.prod(boxes[a][0][k] for a, k in enumerate(outputs))
        values = [boxes[a][1][k] for a, k in enumerate(outputs)]
        opened, deployed = play(index, index, values)
        paid = sum(boxes[a][2][outputs[a]] for a in opened)
        total += probability * (values[deployed] - paid)
    return total


# ----------------------------------------------------------------------------------------------------------
# Estimators


def sigmoid(z):
    return 1 / (1 + np.exp(-np.asarray(z, float)))


def _newton(loss, gradient, hessian, start, tolerance=1e-12, most=200):
    point = np.array(start, float)
    for _ in range(most):
        slope = gradient(point)
        if np.max(np.abs(slope)) < tolerance:
            break
        step = np.linalg.solve(hessian(point), slope)
        now, scale = loss(point), 1.0
        while loss(point - scale * step) > now - 1e-4 * scale * slope @ step + 1e-14 * abs(now) and scale > 1e-8:
            scale /= 2
        point = point - scale * step
    return point


def fit_reward(features, rewards, ridge, start):
    """Ridge logistic maximum likelihood."""
    features, rewards = np.asarray(features, float).reshape(-1, len(start)), np.asarray(rewards, float)

    def loss(theta):
        z = features @ theta
        return np.sum(np.logaddexp(0, z) - rewards * z) + ridge / 2 * theta @ theta

    def gradient(theta):
        return features.T @ (sigmoid(features @ theta) - rewards) + ridge * theta

    def hessian(theta):
        p = sigmoid(features @ theta)
        return (features * (p * (1 - p))[:, None]).T @ features + ridge * np.eye(len(theta))

    return _newton(loss, gradient, hessian, start)


def fit_index(psi, means, costs, ridge, start):
    """Minimiser of the sum of l(rho) = int_0^{rho.psi} [c - (mu - tanh u)^+] du, plus ridge/2 |rho|^2."""
    psi, costs = np.asarray(psi, float).reshape(-1, len(start)), np.asarray(costs, float)
    means = np.minimum(np.asarray(means, float), LARGEST_MEAN)

    def loss(rho):
        u = psi @ rho
        q = np.minimum(u, np.arctanh(means))
        return np.sum(costs * u - means * q + np.log(np.cosh(q))) + ridge / 2 * rho @ rho

    def gradient(rho):
        return psi.T @ (costs - np.maximum(means - np.tanh(psi @ rho), 0)) + ridge * rho

    def hessian(rho):
        level = np.tanh(psi @ rho)
        weight = (means > level) * (1 - level**2)
        return (psi * weight[:, None]).T @ psi + ridge * np.eye(len(rho))

    return _newton(loss, gradient, hessian, start)


# ----------------------------------------------------------------------------------------------------------
# Learners


def refit_rounds(last_round, until, growth):
    """Rounds 0..last_round that end with a refit: round 0, every one to ``until``, then geometric."""
    due, last = [], 0
    for t in range(last_round + 1):
        if t <= until or t >= (1 + growth) * last:
            due.append(t)
            last = t
    return due


class Weitzman:
    """DOW, and with both widths 0 the online plug-in; ``estimator`` is "refit" or "one_pass"."""

    def __init__(self, boxes, m, d, known, index_width, value_width, ridge=(10.0, 1.0), due=None, one_pass=False):
        self.known, self.index_width, self.value_width = known, index_width, value_width
        self.ridge_index, self.ridge_value = ridge
        self.rho, self.theta = np.zeros((boxes, m)), np.zeros(d)
        self.v = np.array([self.ridge_index * np.eye(m) for _ in range(boxes)])
        self.phi = self.ridge_value * np.eye(d)
        self.h, self.l = self.v.copy(), self.phi.copy()
        self.log = [[] for _ in range(boxes)]
        self.rewards, self.rows, self.due, self.one_pass = [], 0, due, one_pass

    def index(self, psi):
        widths = [math.sqrt(psi @ np.linalg.solve(v, psi)) for v in self.v]
        return np.tanh(self.rho @ psi + self.index_width * np.array(widths))

    def values(self, features, means):
        if self.known:
            return means
        widths = [math.sqrt(f @ np.linalg.solve(self.phi, f)) for f in features]
        return sigmoid(features @ self.theta + self.value_width * np.array(widths))

    def learn(self, psi, features, means, costs, opened, deployed, reward):
        for a in opened:
            self.v[a] += np.outer(psi, psi)
            self.log[a].append((psi, features[a], means[a], costs[a]))
        f = features[deployed]
        self.phi += np.outer(f, f)
        self.rewards.append((f, reward))
        self.rows += 1
        if self.one_pass:
            self._step(psi, features, means, costs, opened, deployed, reward)
        elif self.due is None or self.rows in self.due:
            self.refit()

    def refit(self):
        features, rewards = ([row[i] for row in self.rewards] for i in (0, 1))
        self.theta = fit_reward(features, rewards, self.ridge_value, self.theta)
        for a, log in enumerate(self.log):
            means = [m if self.known else sigmoid(f @ self.theta) for _, f, m, _ in log]
            self.rho[a] = fit_index([p for p, *_ in log], means, [c for *_, c in log], self.ridge_index, self.rho[a])

    def _step(self, psi, features, means, costs, opened, deployed, reward):
        f = features[deployed]
        p = float(sigmoid(f @ self.theta))
        self.l += p * (1 - p) * np.outer(f, f)
        self.theta = self.theta - np.linalg.solve(self.l, f) * (p - reward)
        for a in opened:
            mean = means[a] if self.known else float(sigmoid(features[a] @ self.theta))
            level = math.tanh(self.rho[a] @ psi)
            weight = max(0.02, (mean > level) * (1 - level**2))
            self.h[a] += weight * np.outer(psi, psi)
            self.rho[a] = self.rho[a] - np.linalg.solve(self.h[a], psi) * (costs[a] - max(mean - level, 0))


def run(policy, online, calibration=None):
    """Utility, boxes opened, first box and deployed box of every online period; the policy learns in place.

    Args:
      policy: a learner.
      online, calibration: (psi [T,m], features [T,A,d], costs [T,A], means [T,A], uniforms [T,A]).
    """
    if calibration is not None:
        for s, (psi, features, costs, means, uniforms) in enumerate(zip(*calibration, strict=True)):
            box = s % len(costs)
            policy.learn(psi, features, means, costs, [box], box, float(uniforms[box] < means[box]))
    out = {"utility": [], "opened": [], "first": [], "deployed": []}
    for psi, features, costs, means, uniforms in zip(*online, strict=True):
        index = policy.index(psi)
        opened, deployed = play(index, index, policy.values(features, means))
        policy.learn(psi, features, means, costs, opened, deployed, float(uniforms[0] < means[deployed]))
        out["utility"].append(means[deployed] - sum(costs[a] for a in opened))
        out["opened"].append(len(opened))
        out["first"].append(opened[0])
        out["deployed"].append(deployed)
    return {name: np.array(values) for name, values in out.items()}


class LinUCB:
    """Opens the box of the highest upper bound on its net payoff; ridge regression per box."""

    def __init__(self, boxes, m, width):
        self.width = width
        self.a = np.array([np.eye(m) for _ in range(boxes)])
        self.b = np.zeros((boxes, m))

    def coefficients(self):
        return np.array([np.linalg.solve(a, b) for a, b in zip(self.a, self.b, strict=True)])

    def index(self, psi):
        widths = np.array([math.sqrt(psi @ np.linalg.solve(a, psi)) for a in self.a])
        bound = self.coefficients() @ psi + self.width * widths
        return np.where(np.arange(len(bound)) == np.argmax(bound), 1.0, -np.inf)  # no second box is worth opening

    def values(self, features, means):
        return np.zeros(len(features))

    def learn(self, psi, features, means, costs, opened, deployed, reward):
        self.a[deployed] += np.outer(psi, psi)
        self.b[deployed] += psi * (reward - costs[deployed])


def tune_frugal(calibration, ridge, stopped, levels=21):
    """FrugalGPT by plain enumeration: scorer, order, thresholds and the best mean utility in calibration."""
    _, features, costs, means, uniforms = (np.asarray(a) for a in calibration)
    periods, boxes, d = features.shape
    rewards = (uniforms < means).astype(float)
    scorer = fit_reward(features.reshape(-1, d), rewards.ravel(), ridge, np.zeros(d))
    scores = sigmoid(features @ scorer)
    quantiles = np.quantile(scores, np.linspace(0, 1, levels), axis=0)
    best = (-math.inf, None, None)
    for stages in range(1, boxes + 1):
        for chain in itertools.permutations(range(boxes), stages):
            for code in itertools.product(range(levels), repeat=stages - 1):
                cuts = [quantiles[k, chain[i]] for i, k in enumerate(code)]
                total = 0.0
                for s in range(periods):
                    stage = 0
                    while stage < stages - 1 and scores[s, chain[stage]] < cuts[stage]:
                        stage += 1
                    opened = chain[: stage + 1]
                    box = chain[stage] if stopped else max(opened, key=lambda a, s=s: scores[s, a])
                    total += rewards[s, box] - sum(costs[s, a] for a in opened)
                if total / periods > best[0] + 1e-12:
                    order, threshold = np.zeros(boxes), np.full(boxes, -np.inf)
                    for i, a in enumerate(chain):
                        order[a] = stages - i
                        if i:
                            threshold[a] = cuts[i - 1]
                    best = (total / periods, order, threshold)
    return scorer, best[1], best[2], best[0]
