"""Slow, plain NumPy reference of the deferral system (arXiv 2610.15128), the ground truth of the tests.

Nothing here is clever: the Bellman recursion is backward induction on the values themselves, every label
sits in a Python list, and each round is one turn of a Python loop. It shares no code with the package.
"""

import math
from collections import deque
from functools import lru_cache

import numpy as np

BISECTION_STEPS = 200
TIE_TOLERANCE = 1e-12  # relative; two expected costs closer than this are a tie when a baseline is tuned

PLUG_IN_POLICIES = ("kl_pbd", "kl_pbd_plus", "greedy_bellman", "naive_bellman", "oracle")
QUEUE_BLIND_POLICIES = ("kl_ucb_4p", "kl_ucb_plus_4p")
FIXED_POLICIES = ("fixed_confidence_threshold", "fixed_queue_threshold")
PLAIN_POLICIES = ("accept_all", "defer_all", "random")
POLICIES = PLUG_IN_POLICIES + QUEUE_BLIND_POLICIES + FIXED_POLICIES + ("salmut_sf",) + PLAIN_POLICIES


# ----------------------------------------------------------------------------------------------------------
# Bellman kernel


def drain_cost(service, cost_holding, capacity):
    """D of Section 3.1: D(0)=0, D(b) = chold*b + E[D((b-C)^+)], solved for D(b) as C=0 gives b back."""
    drain = np.zeros(capacity + 1)
    for b in range(1, capacity + 1):
        total = cost_holding * b
        for served, probability in enumerate(service):
            if served > 0:
                total += probability * drain[max(b - served, 0)]
        drain[b] = total / (1.0 - service[0])
    return drain


def service_matrix(service, capacity):
    """Row b holds P((b-C)^+ = b'), for b and b' in 0..capacity."""
    matrix = np.zeros((capacity + 1, capacity + 1))
    for b in range(capacity + 1):
        for served, probability in enumerate(service):
            matrix[b, max(b - served, 0)] += probability
    return matrix


def _bellman_step(value, matrix, loss, arrival, cost_expert, cost_holding):
    """From U_{t+1} to (U_t, M_t): F_t(b) = E[U_{t+1}((b-C)^+)], M_t(b) = cexp + F_t(b+1) - F_t(b)."""
    after = matrix @ value
    marginal = cost_expert + after[1:] - after[:-1]
    capacity = len(value) - 1
    new_value = np.empty(capacity + 1)
    for b in range(capacity + 1):
        new_value[b] = cost_holding * b + after[b]  # no query: nothing else (forced accept, L_0 = 0)
        extra = loss if b == capacity else np.minimum(loss, marginal[b])  # M_t(Bbar) = +inf
        new_value[b] += float(np.dot(arrival[1:], extra))
    return new_value, marginal


def marginal_costs(accuracy, arrival, service, cost_error, cost_expert, cost_holding, capacity, rounds):
    """M_t(b) of equation (1), b = 0..capacity-1; row n is the round with n = T - t rounds left after it.

    Plain backward induction on U_t, from U_{T+1} = D.
    """
    arrival = np.asarray(arrival, dtype=np.float64)
    loss = cost_error * (1.0 - np.asarray(accuracy, dtype=np.float64))
    matrix = service_matrix(service, capacity)
    value = drain_cost(service, cost_holding, capacity)
    table = np.empty((rounds, capacity))
    for n in range(rounds):
        value, table[n] = _bellman_step(value, matrix, loss, arrival, cost_expert, cost_holding)
    return table


def optimal_value(accuracy, arrival, service, cost_error, cost_expert, cost_holding, capacity, rounds):
    """U_1(b), b = 0..capacity: the least expected cost of `rounds` rounds and the terminal cost."""
    arrival = np.asarray(arrival, dtype=np.float64)
    loss = cost_error * (1.0 - np.asarray(accuracy, dtype=np.float64))
    matrix = service_matrix(service, capacity)
    value = drain_cost(service, cost_holding, capacity)
    for _ in range(rounds):
        value, _ = _bellman_step(value, matrix, loss, arrival, cost_expert, cost_holding)
    return value


def stationary_marginal_costs(
    accuracy, arrival, service, cost_error, cost_expert, cost_holding, capacity, tolerance=1e-13, limit=50_000
):
    """M(b) far from the horizon: the same recursion, with U(0) taken off each round so it stays bounded."""
    arrival = np.asarray(arrival, dtype=np.float64)
    loss = cost_error * (1.0 - np.asarray(accuracy, dtype=np.float64))
    matrix = service_matrix(service, capacity)
    value = drain_cost(service, cost_holding, capacity)
    previous = np.full(capacity, -np.inf)
    for _ in range(limit):
        value, marginal = _bellman_step(value, matrix, loss, arrival, cost_expert, cost_holding)
        value = value - value[0]
        if np.max(np.abs(marginal - previous)) < tolerance:
            break
        previous = marginal
    return marginal


# ----------------------------------------------------------------------------------------------------------
# Confidence bounds


def kl(p, q):
    """Bernoulli relative entropy kl(p, q), exact (0, finite or inf) when p or q is 0 or 1."""
    total = 0.0
    if p > 0.0:
        if q <= 0.0:
            return math.inf
        total += p * math.log(p / q)
    if p < 1.0:
        if q >= 1.0:
            return math.inf
        total += (1.0 - p) * (math.log(1.0 - p) - math.log1p(-q))
    return max(total, 0.0)


@lru_cache(maxsize=1 << 17)
def kl_lower(mean, count, budget):
    """inf{q <= mean : count * kl(mean, q) <= budget} (Section 4.1); 0 without labels."""
    if count == 0 or mean <= 0.0:
        return 0.0
    if budget <= 0.0:
        return mean
    if mean >= 1.0:
        return math.exp(-budget / count)
    low, high = 0.0, mean
    for _ in range(BISECTION_STEPS):
        middle = 0.5 * (low + high)
        if count * kl(mean, middle) <= budget:
            high = middle
        else:
            low = middle
    return high


@lru_cache(maxsize=1 << 17)
def kl_upper(mean, count, budget):
    """sup{q >= mean : count * kl(mean, q) <= budget} (Appendix F, KL-UCB-4P); 1 without labels."""
    if count == 0 or mean >= 1.0:
        return 1.0
    if budget <= 0.0:
        return mean
    if mean <= 0.0:
        return -math.expm1(-budget / count)
    low, high = mean, 1.0
    for _ in range(BISECTION_STEPS):
        middle = 0.5 * (low + high)
        if count * kl(mean, middle) <= budget:
            low = middle
        else:
            high = middle
    return low


def horizon_budget(horizon):
    """phi(T) = log T + log log T of Section 4.1, and 0 where that is negative or undefined (T < 3)."""
    if horizon < 2:
        return 0.0
    return max(math.log(horizon) + math.log(math.log(horizon)), 0.0)


def level_budget(arrivals):
    """log O + 3 log max(1, log O), the budget of KL-UCB-4P (Appendix F)."""
    return math.log(arrivals) + 3.0 * math.log(max(1.0, math.log(arrivals)))


# ----------------------------------------------------------------------------------------------------------
# What a policy may know


class _History:
    """Counts before the decision of round t: O_j (round t included), N_j, C_j, capacities of rounds < t."""

    def __init__(self, instance, horizon):
        self.horizon = horizon
        self.levels = len(instance["accuracy"])
        self.capacity = instance["queue_capacity"]
        self.round = 0
        self.arrivals = [0] * (self.levels + 1)
        self.labels = [0] * self.levels
        self.right = [0] * self.levels
        self.served = [0] * (self.capacity + 1)

    def start_round(self, level):
        self.round += 1
        self.arrivals[level] += 1

    def end_round(self, revealed, capacity):
        for level, label in revealed:
            self.labels[level - 1] += 1
            self.right[level - 1] += label
        self.served[min(capacity, self.capacity)] += 1

    def mean(self, j):
        """Empirical mean of level index j, 0 without labels."""
        return self.right[j] / self.labels[j] if self.labels[j] else 0.0

    def arrival(self):
        """omega_hat of equation (46), the current arrival included."""
        return np.array(self.arrivals, dtype=np.float64) / self.round

    def service(self):
        """rho_hat of equation (46), truncated at Bbar, rounds < t; None while mu_hat = 0 or t = 1."""
        past = self.round - 1
        if past == 0 or self.served[0] == past:
            return None
        return np.array(self.served, dtype=np.float64) / past


# ----------------------------------------------------------------------------------------------------------
# Policies: decide(queue, level, uniform) -> (action, accuracy threshold, margin of the decision)


class _PlugIn:
    """Algorithm 1 and its variants: defer iff ce(1-g_J) > M^g_t(B_t), ties accept (Appendix F, B.6)."""

    def __init__(self, name, instance, history, estimate_arrival, estimate_service, resolve_every):
        self.name = name
        self.instance = instance
        self.history = history
        self.estimate_arrival = estimate_arrival and name != "oracle"
        self.estimate_service = estimate_service and name != "oracle"
        self.resolve_every = resolve_every if name in ("kl_pbd", "kl_pbd_plus", "greedy_bellman") else 1
        self.inside = None  # the vector g inside the recursion
        self.labels_at_refresh = 0
        self.solved_inputs = None
        self.solved_table = None

    def estimate(self, j):
        """g_j of the table "Policies" for level index j, with everything known now."""
        history = self.history
        if self.name == "oracle":
            return self.instance["accuracy"][j]
        if self.name == "naive_bellman":
            return self.instance["score"][j]
        if history.labels[j] == 0:
            return 0.0
        if self.name == "greedy_bellman":
            return history.mean(j)
        if self.name == "kl_pbd":
            budget = horizon_budget(history.horizon)
        else:
            budget = math.log(history.arrivals[j + 1] / history.labels[j])
        return kl_lower(history.mean(j), history.labels[j], budget)

    def refresh(self):
        """Renew the vector inside the recursion: every round, or once `resolve_every` labels have come."""
        labels = sum(self.history.labels)
        due = self.inside is None or self.resolve_every == 1
        if due or labels - self.labels_at_refresh >= self.resolve_every:
            self.inside = np.array([self.estimate(j) for j in range(self.history.levels)], dtype=np.float64)
            self.labels_at_refresh = labels

    def marginal(self, arrival, service):
        """M^g_t(b), b < Bbar, for the current round; solved again whenever an input has changed."""
        rounds_left = self.history.horizon - self.history.round
        inputs = (tuple(self.inside), tuple(arrival), tuple(service))
        if inputs != self.solved_inputs:
            self.solved_table = marginal_costs(
                self.inside,
                arrival,
                service,
                self.instance["cost_error"],
                self.instance["cost_expert"],
                self.instance["cost_holding"],
                self.instance["queue_capacity"],
                rounds_left + 1,
            )
            self.solved_inputs = inputs
        return self.solved_table[rounds_left]

    def decide(self, queue, level, uniform):
        del uniform
        self.refresh()
        arrival = self.history.arrival() if self.estimate_arrival else self.instance["arrival"]
        service = self.history.service() if self.estimate_service else self.instance["service"]
        if service is None:
            return 0, math.nan, math.nan
        if queue == self.instance["queue_capacity"]:
            return 0, 0.0, math.nan
        marginal = self.marginal(arrival, service)[queue]
        threshold = max(1.0 - marginal / self.instance["cost_error"], 0.0)
        if level == 0:
            return 0, threshold, math.nan
        margin = self.instance["cost_error"] * (1.0 - self.estimate(level - 1)) - marginal
        return int(margin > 0.0), threshold, margin


class _QueueBlind:
    """KL-UCB-4P and KL-UCB+-4P (Appendix F): defer iff ce * q_J >= cexp unless the queue is full."""

    def __init__(self, name, instance, history):
        self.name = name
        self.instance = instance
        self.history = history

    def decide(self, queue, level, uniform):
        del uniform
        if queue == self.instance["queue_capacity"]:
            return 0, 0.0, math.nan
        threshold = max(1.0 - self.instance["cost_expert"] / self.instance["cost_error"], 0.0)
        if level == 0:
            return 0, threshold, math.nan
        arrivals, labels = self.history.arrivals[level], self.history.labels[level - 1]
        if labels == 0:
            error = 1.0
        else:
            budget = level_budget(arrivals) if self.name == "kl_ucb_4p" else math.log(arrivals / labels)
            error = kl_upper(1.0 - self.history.mean(level - 1), labels, budget)
        margin = self.instance["cost_error"] * error - self.instance["cost_expert"]
        return int(margin >= 0.0), threshold, margin


class _FixedThresholds:
    """Defer iff B_t < tau_J, tau fixed before the run (FCT has only the thresholds 0 and Bbar)."""

    def __init__(self, thresholds, capacity):
        self.thresholds = thresholds
        self.capacity = capacity

    def decide(self, queue, level, uniform):
        del uniform
        defer = level > 0 and queue < self.capacity and queue < self.thresholds[level - 1]
        return int(defer), math.nan, math.nan


class _Plain:
    """accept_all, defer_all and random."""

    def __init__(self, name, capacity, probability):
        self.name = name
        self.capacity = capacity
        self.probability = probability

    def decide(self, queue, level, uniform):
        feasible = level > 0 and queue < self.capacity
        wanted = {
            "accept_all": False,
            "defer_all": True,
            "random": uniform < self.probability,
        }[self.name]
        return int(feasible and wanted), math.nan, math.nan


class _Salmut:
    """SALMUT-SF (Appendix F): one real queue threshold a level, moved by a relative-value critic."""

    def __init__(self, instance, history):
        self.instance = instance
        self.history = history
        self.capacity = instance["queue_capacity"]
        self.thresholds = np.zeros(history.levels)
        self.value = np.zeros(self.capacity + 1)
        self.visits = [0] * (self.capacity + 1)
        self.matrix = service_matrix(instance["service"], self.capacity)

    def decide(self, queue, level, uniform):
        if level == 0 or queue == self.capacity:
            return 0, math.nan, math.nan
        margin = self.thresholds[level - 1] - queue
        forced = uniform < min(0.5, 2.0 / math.sqrt(self.history.round))
        return int(margin > 0.0 or forced), math.nan, margin

    def learn(self, queue, level, action, next_queue):
        """After service and labels: the critic at the pre-decision state, then the actor."""
        cost_error, cost_expert = self.instance["cost_error"], self.instance["cost_expert"]
        loss = cost_error * (1.0 - self.history.mean(level - 1)) if level > 0 else 0.0
        cost = self.instance["cost_holding"] * queue + cost_expert * action + loss * (1 - action)
        step = (self.visits[queue] // 100 + 2) ** -0.6
        value = self.value
        value[queue] += step * (cost + value[next_queue] - value[0] - value[queue])
        self.visits[queue] += 1
        if level == 0 or queue == self.capacity:
            return
        after_defer = self.matrix[queue + 1] @ value
        after_accept = self.matrix[queue] @ value
        advantage = cost_expert - loss + after_defer - after_accept
        threshold = self.thresholds[level - 1]
        sigmoid = 1.0 / (1.0 + math.exp(-(queue - threshold - 0.5)))
        moved = threshold - 10.0 / (self.history.round + 100.0) * sigmoid * (1.0 - sigmoid) * advantage
        self.thresholds[level - 1] = min(max(moved, 0.0), self.capacity)


# ----------------------------------------------------------------------------------------------------------
# Tuning of the fixed policies (Appendix F, "Fixed-threshold policies")


def fixed_policy_cost(thresholds, accuracy, arrival, service, cost_error, cost_expert, cost_holding, capacity, horizon):
    """Expected cost of `horizon` rounds and D(B_{T+1}), from an empty queue, of "defer iff B < tau_J"."""
    matrix = service_matrix(service, capacity)
    transition = np.zeros((capacity + 1, capacity + 1))
    cost = np.zeros(capacity + 1)
    for b in range(capacity + 1):
        cost[b] = cost_holding * b
        transition[b] += arrival[0] * matrix[b]
        for j in range(len(accuracy)):
            if b < capacity and b < thresholds[j]:
                cost[b] += arrival[j + 1] * cost_expert
                transition[b] += arrival[j + 1] * matrix[b + 1]
            else:
                cost[b] += arrival[j + 1] * cost_error * (1.0 - accuracy[j])
                transition[b] += arrival[j + 1] * matrix[b]
    value = drain_cost(service, cost_holding, capacity)
    for _ in range(horizon):
        value = cost + transition @ value
    return float(value[0])


def _first_least(costs):
    """Index of the least cost, the first of those tied with it."""
    least = min(costs)
    tolerance = TIE_TOLERANCE * max(1.0, abs(least))
    return next(i for i, cost in enumerate(costs) if cost <= least + tolerance)


def _tuning_arguments(instance, estimate_arrival):
    """Arguments of `fixed_policy_cost` under h = p; the uniform arrivals stand in for unknown ones."""
    levels = len(instance["accuracy"])
    arrival = instance["arrival"]
    if estimate_arrival:
        arrival = np.array([0.0] + [1.0 / levels] * levels)
    names = ("service", "cost_error", "cost_expert", "cost_holding", "queue_capacity")
    return (instance["score"], arrival, *(instance[name] for name in names))


def tune_confidence_thresholds(instance, horizon, estimate_arrival=False):
    """FCT as queue thresholds: Bbar where p_j < cut and else 0, for the best of the K+1 cuts."""
    score = np.asarray(instance["score"], dtype=np.float64)
    arguments = _tuning_arguments(_as_float64(instance), estimate_arrival)
    cuts = [*sorted(score), math.inf]  # the i-th cut defers the levels below the i-th lowest score
    candidates = [[instance["queue_capacity"] if p < cut else 0 for p in score] for cut in cuts]
    costs = [fixed_policy_cost(candidate, *arguments, horizon) for candidate in candidates]
    return candidates[_first_least(costs)]


def naive_queue_thresholds(instance, estimate_arrival=False):
    """The queue thresholds that NBD uses far from the horizon: the number of b with ce(1-p_j) > M(b)."""
    arguments = _tuning_arguments(_as_float64(instance), estimate_arrival)
    marginal = stationary_marginal_costs(*arguments)
    thresholds = []
    for p in instance["score"]:
        b = 0
        while b < instance["queue_capacity"] and instance["cost_error"] * (1.0 - p) > marginal[b]:
            b += 1
        thresholds.append(b)
    return thresholds


def tune_queue_thresholds(instance, horizon, estimate_arrival=False):
    """FQT: coordinate descent from four starting vectors, the best local optimum (ties: the first)."""
    levels, capacity = len(instance["accuracy"]), instance["queue_capacity"]
    arguments = _tuning_arguments(_as_float64(instance), estimate_arrival)
    starts = [
        [0] * levels,
        [capacity] * levels,
        naive_queue_thresholds(instance, estimate_arrival),
        tune_confidence_thresholds(instance, horizon, estimate_arrival),
    ]
    known = {}

    def cost_of(thresholds):
        key = tuple(thresholds)
        if key not in known:
            known[key] = fixed_policy_cost(key, *arguments, horizon)
        return known[key]

    results = []
    for start in starts:
        thresholds = list(start)
        changed = True
        while changed:
            changed = False
            for j in range(levels):
                scan = [[*thresholds[:j], b, *thresholds[j + 1 :]] for b in range(capacity + 1)]
                best = _first_least([cost_of(candidate) for candidate in scan])
                if best != thresholds[j]:
                    thresholds[j] = best
                    changed = True
        results.append(thresholds)
    return results[_first_least([cost_of(thresholds) for thresholds in results])]


@lru_cache(maxsize=64)
def _tuned(name, frozen_instance, horizon, estimate_arrival):
    instance = {key: np.array(item) if isinstance(item, tuple) else item for key, item in frozen_instance}
    tune = tune_confidence_thresholds if name == "fixed_confidence_threshold" else tune_queue_thresholds
    return tuple(tune(instance, horizon, estimate_arrival))


# ----------------------------------------------------------------------------------------------------------
# Simulation


def _as_float64(instance):
    """The instance with float64 arrays and Python floats."""
    plain = {}
    for name in ("accuracy", "arrival", "service", "score"):
        plain[name] = np.asarray(instance[name], dtype=np.float64)
    for name in ("cost_error", "cost_expert", "cost_holding"):
        plain[name] = float(instance[name])
    plain["queue_capacity"] = int(instance["queue_capacity"])
    return plain


def _make_policy(name, instance, history, estimate_arrival, estimate_service, resolve_every, probability):
    if name in PLUG_IN_POLICIES:
        return _PlugIn(name, instance, history, estimate_arrival, estimate_service, resolve_every)
    if name in QUEUE_BLIND_POLICIES:
        return _QueueBlind(name, instance, history)
    if name in FIXED_POLICIES:
        frozen = tuple((k, tuple(v) if isinstance(v, np.ndarray) else v) for k, v in instance.items())
        thresholds = _tuned(name, frozen, history.horizon, bool(estimate_arrival))
        return _FixedThresholds(thresholds, instance["queue_capacity"])
    if name == "salmut_sf":
        return _Salmut(instance, history)
    if name in PLAIN_POLICIES:
        return _Plain(name, instance["queue_capacity"], probability)
    raise ValueError(f"unknown policy {name!r}")


def simulate(
    instance,
    policy,
    noise,
    *,
    estimate_arrival=False,
    estimate_service=False,
    resolve_every=1,
    probability=0.5,
):
    """One run of Section 3.1's system under `policy`, on the given noise.

    Returns arrays of shape (T,): action, queue (B_t), threshold (max(tau_t(B_t), 0), 0 at a full queue, nan
    without one), regret (decision gap of Lemma 2), cost (c_t), labels (revealed at the end of the round),
    correct, margin (signed distance of the decision from a tie, nan where nothing was compared); and the
    scalars final_queue = B_{T+1} and terminal_cost = D(B_{T+1}).
    """
    instance = _as_float64(instance)
    horizon = len(noise["level"])
    bound = instance["queue_capacity"]
    cost_error, cost_expert = instance["cost_error"], instance["cost_expert"]
    history = _History(instance, horizon)
    player = _make_policy(policy, instance, history, estimate_arrival, estimate_service, resolve_every, probability)
    oracle_table = marginal_costs(
        instance["accuracy"],
        instance["arrival"],
        instance["service"],
        cost_error,
        cost_expert,
        instance["cost_holding"],
        bound,
        horizon,
    )
    names = ("action", "queue", "threshold", "regret", "cost", "labels", "correct", "margin")
    out = {name: np.zeros(horizon) for name in names}
    pending = deque()  # FIFO, entries (level, label)

    for t in range(1, horizon + 1):
        i = t - 1
        level = int(noise["level"][i])
        label = int(noise["label"][i]) if level > 0 else 1
        served = int(noise["capacity"][i])
        queue = len(pending)

        history.start_round(level)
        action, threshold, margin = player.decide(queue, level, float(noise["policy_uniform"][i]))

        gap = 0.0
        if level > 0 and queue < bound:
            loss = cost_error * (1.0 - instance["accuracy"][level - 1])
            marginal = oracle_table[horizon - t, queue]
            if action != int(loss > marginal):
                gap = abs(loss - marginal)

        if action == 1:
            pending.append((level, label))
        revealed = [pending.popleft() for _ in range(min(served, len(pending)))]
        history.end_round(revealed, served)
        if policy == "salmut_sf":
            player.learn(queue, level, action, len(pending))

        out["action"][i] = action
        out["queue"][i] = queue
        out["threshold"][i] = threshold
        out["regret"][i] = gap
        error = (1 - action) * (1 - label)
        out["cost"][i] = instance["cost_holding"] * queue + cost_expert * action + cost_error * error
        out["labels"][i] = len(revealed)
        out["correct"][i] = int(level > 0 and (action == 1 or label == 1))
        out["margin"][i] = margin

    for name in ("action", "queue", "labels", "correct"):
        out[name] = out[name].astype(np.int64)
    out["final_queue"] = len(pending)
    drain = drain_cost(instance["service"], instance["cost_holding"], bound)
    out["terminal_cost"] = float(drain[len(pending)])
    return out
