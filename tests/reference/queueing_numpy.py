"""Slow, plain NumPy reference of the queueing system (arXiv 2602.02061), the ground truth of the tests.

Nothing here is clever: waiting queries are dicts in a Python list in order of arrival, assortments are
enumerated, the likelihood is maximised by Newton's method on the whole history with a dense Hessian, design
matrices are inverted afresh, and each round is one turn of a Python loop. It shares no code with the package.
"""

import itertools
import math

import numpy as np

CONTEXT_POLICIES = ("acqb", "cqb_eps")
ARM_POLICIES = ("q_ucb", "q_ths")
POLICIES = (*CONTEXT_POLICIES, *ARM_POLICIES, "rand", "rand_rout", "optimal")


# ----------------------------------------------------------------------------------------------------------
# Choice model


def choice_probabilities(utility, assortment):
    """p_j for j in the assortment, in its order, and p_0."""
    top = max(0.0, max(utility[j] for j in assortment))
    weight = [math.exp(utility[j] - top) for j in assortment]
    total = math.exp(-top) + sum(weight)
    return [w / total for w in weight], math.exp(-top) / total


def departure_rate(utility, assortment):
    return sum(choice_probabilities(utility, assortment)[0])


def log_weight(utility, assortment):
    """Orders assortments as their departure rates do, without saturating."""
    top = max(utility[j] for j in assortment)
    return top + math.log(sum(math.exp(utility[j] - top) for j in assortment))


def best_assortment(utility, size):
    """The assortment of greatest rate by enumeration; of equal ones the lowest indices."""
    return max(itertools.combinations(range(len(utility)), size), key=lambda s: log_weight(utility, s))


def negative_log_likelihood(theta, history, regularisation):
    """The loss of Appendix B.1; history holds (context, assortment, chosen or None), theta is [N, d]."""
    loss = regularisation / 2 * float(np.sum(theta**2))
    for context, assortment, chosen in history:
        utility = theta @ context
        probability, outside = choice_probabilities(utility, assortment)
        loss -= math.log(outside if chosen is None else probability[assortment.index(chosen)])
    return loss


def loss_gradient(theta, history, regularisation):
    gradient = regularisation * theta
    for context, assortment, chosen in history:
        probability, _ = choice_probabilities(theta @ context, assortment)
        for j, p in zip(assortment, probability, strict=True):
            gradient[j] = gradient[j] + (p - (chosen == j)) * context
    return gradient


def loss_hessian(theta, history, regularisation):
    number, dim = theta.shape
    hessian = regularisation * np.eye(number * dim).reshape(number, dim, number, dim)
    for context, assortment, _ in history:
        probability, _ = choice_probabilities(theta @ context, assortment)
        outer = np.outer(context, context)
        for (i, p), (j, q) in itertools.product(zip(assortment, probability, strict=True), repeat=2):
            hessian[i, :, j, :] += (p * (i == j) - p * q) * outer
    return hessian.reshape(number * dim, number * dim)


def maximum_likelihood(theta, history, regularisation, tolerance=1e-12):
    """The exact minimiser, by damped Newton steps from theta."""
    theta = np.array(theta, dtype=np.float64)
    for _ in range(100):
        gradient = loss_gradient(theta, history, regularisation)
        if np.max(np.abs(gradient)) < tolerance:
            break
        hessian = loss_hessian(theta, history, regularisation)
        step = np.linalg.solve(hessian, gradient.reshape(-1)).reshape(theta.shape)
        loss, scale = negative_log_likelihood(theta, history, regularisation), 1.0
        while scale > 1e-6 and negative_log_likelihood(theta - scale * step, history, regularisation) > loss + 1e-12:
            scale /= 2
        theta = theta - scale * step
    return theta


class OnePass:
    """The one-pass estimator: an implicit Newton step along H_j^{-1} x for every offered LLM."""

    def __init__(self, number, dim, regularisation):
        self.theta = np.zeros((number, dim))
        self.curvature = [regularisation * np.eye(dim) for _ in range(number)]

    def learn(self, context, assortment, chosen):
        ahead = {j: np.linalg.solve(self.curvature[j], context) for j in assortment}
        move = dict.fromkeys(assortment, 0.0)

        def probabilities():
            utility = {j: self.theta[j] @ context + move[j] * (context @ ahead[j]) for j in assortment}
            return dict(zip(assortment, choice_probabilities(utility, assortment)[0], strict=True))

        for _ in range(4):
            p = probabilities()
            for j in assortment:
                size = context @ ahead[j]
                move[j] += ((chosen == j) - p[j] - move[j]) / (1 + size * p[j] * (1 - p[j]))
        p = probabilities()
        for j in assortment:
            self.theta[j] = self.theta[j] + move[j] * ahead[j]
            self.curvature[j] = self.curvature[j] + p[j] * (1 - p[j]) * np.outer(context, context)


# ----------------------------------------------------------------------------------------------------------
# Picking queries


def ticket(word, arrived):
    """MurmurHash3's finaliser on 32-bit words, of the round's word and the arrival number."""
    mask = 0xFFFFFFFF
    h = (int(word * 2**24) * 0x9E3779B1 + arrived * 0x85EBCA77) & mask
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & mask
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & mask
    return (h ^ (h >> 16)) >> 1


def pick(rule, waiting, word):
    """A query of the list by one of the rules fifo, lifo, random, round_robin."""
    if rule == "fifo":
        return waiting[0]
    if rule == "lifo":
        return waiting[-1]
    among = waiting
    if rule == "round_robin":
        fewest = min(query["served"] for query in waiting)
        among = [query for query in waiting if query["served"] == fewest]
    return max(among, key=lambda query: (ticket(word, query["arrived"]), -query["arrived"]))


def best_query(waiting, utility_of, size):
    """The query and assortment of greatest rate; of equal queries the oldest."""
    found = None
    for query in waiting:
        utility = utility_of(query)
        assortment = best_assortment(utility, size)
        value = log_weight(utility, assortment)
        if found is None or value > found[0]:
            found = (value, query, assortment)
    return found[1], found[2]


# ----------------------------------------------------------------------------------------------------------
# Policies


class Learner:
    """Estimate, design matrices and counts of ACQB and CQB-eps."""

    def __init__(self, number, dim, size, scale, regularisation, estimator):
        self.size, self.scale, self.regularisation, self.estimator = size, scale, regularisation, estimator
        self.theta = np.zeros((number, dim))
        self.design = [regularisation * np.eye(dim) for _ in range(number)]
        self.count = np.zeros(number, dtype=int)
        self.history = []
        self.one_pass = OnePass(number, dim, regularisation)

    def width(self, j):
        n, dim = max(self.count[j], 1), self.theta.shape[1]
        growth = dim * math.log(1 + self.size * n / (dim * self.regularisation)) + 4 * math.log(n)
        return self.scale * (math.sqrt(growth) / 2 + math.sqrt(self.regularisation))

    def learn(self, context, assortment, chosen):
        for j in assortment:
            self.design[j] = self.design[j] + np.outer(context, context)
            self.count[j] += 1
        if self.estimator == "mle":
            self.history.append((context, assortment, chosen))
            self.theta = maximum_likelihood(self.theta, self.history, self.regularisation)
        else:
            self.one_pass.learn(context, assortment, chosen)
            self.theta = self.one_pass.theta


def sampled_parameters(learner, normal, factor):
    """theta~ of the round, [M, N, d], with the factors S_j of V_j^{-1} that the draws are to be scaled with."""
    samples, number, _ = normal.shape
    return [
        [learner.theta[j] + learner.width(j) * factor[j] @ normal[m, j] for j in range(number)] for m in range(samples)
    ]


def simulate(
    instance,
    policy,
    noise,
    draws,
    *,
    scheduling="acqb",
    exploration="on_arrival",
    estimator="mle",
    index="thompson",
    scale=0.1,
    exploration_rate=1.0,
    regularisation=1.0,
    pure_rounds=None,
    factors=None,
):
    """One run; every random number is given.

    ``noise`` has ``context [T, d]`` (of the query that joins at the end of the round), ``arrives [T]`` and
    ``uniform [T]``; ``draws`` has ``explore [T]``, ``word [T]``, ``servers [T, N]``, ``normal [T, M, N, d]``
    and for Q-ThS ``beta [T](round, a, b) -> [N]``. A Gaussian sample needs a square root of ``V^{-1}``, which
    is not unique: ``factors(t)`` gives the one to use in round t, by default the Cholesky factor.
    """
    theta, size = np.asarray(instance["theta"], dtype=np.float64), int(instance["assortment_size"])
    number, dim = theta.shape
    horizon = len(noise["arrives"])
    learner = Learner(number, dim, size, scale, regularisation, estimator)
    offered, accepted = np.zeros(number, dtype=int), np.zeros(number, dtype=int)
    waiting, oracle_waiting = [], []
    names = ("query", "length", "oracle_length", "regret", "served", "departed", "retrial", "sojourn", "waiting")
    out = {name: np.zeros(horizon) for name in names}
    out["assortment"] = np.full((horizon, size), -1)
    out["theta"] = np.zeros((horizon, number, dim))
    stays, p95, departed_retrials = [], np.full(horizon, np.nan), np.zeros(horizon)

    def true_utility(query):
        return theta @ query["context"]

    for t in range(1, horizon + 1):
        i = t - 1
        explore, word = draws["explore"][i], draws["word"][i]
        random_assortment = tuple(sorted(int(j) for j in np.argsort(-draws["servers"][i], kind="stable")[:size]))
        fresh = waiting[-1] if waiting and waiting[-1]["arrived"] == t - 1 else None
        out["length"][i], out["oracle_length"][i] = len(waiting), len(oracle_waiting)
        u = noise["uniform"][i]

        if waiting:
            if policy == "optimal":
                query, assortment = best_query(waiting, true_utility, size)
            elif policy == "rand":
                query, assortment = pick("random", waiting, word), random_assortment
            elif policy == "rand_rout":
                query, assortment = waiting[0], random_assortment
            elif policy in ARM_POLICIES:
                query = waiting[0]
                if explore < min(1.0, 3 * number * math.log(t) ** 2 / t):
                    assortment = random_assortment
                elif policy == "q_ucb":
                    value = [
                        accepted[j] / offered[j] + math.sqrt(math.log(t) ** 2 / (2 * offered[j]))
                        if offered[j]
                        else math.inf
                        for j in range(number)
                    ]
                    assortment = (int(np.argmax(value)),)
                else:
                    value = draws["beta"](t, accepted + 1, offered - accepted + 1)
                    assortment = (int(np.argmax(value)),)
            else:
                explored = None
                if policy == "acqb":
                    if explore < min(1.0, exploration_rate / math.sqrt(t - 1)):
                        explored = fresh if exploration == "on_arrival" else pick(exploration, waiting, word)
                else:
                    tau = math.isqrt(horizon - 1) + 1 if pure_rounds is None else pure_rounds
                    if t <= tau:
                        explored = fresh if fresh is not None else pick("random", waiting, word)
                    elif explore < horizon**-0.5:
                        explored = fresh
                if explored is not None:
                    query, assortment = explored, random_assortment
                else:
                    if index == "ucb":
                        inverse = [np.linalg.inv(v) for v in learner.design]

                        def utility_of(query, inverse=inverse):
                            x = query["context"]
                            return np.array(
                                [
                                    learner.theta[j] @ x + learner.width(j) * math.sqrt(x @ inverse[j] @ x)
                                    for j in range(number)
                                ]
                            )
                    else:
                        root = (
                            [np.linalg.cholesky(np.linalg.inv(v)) for v in learner.design]
                            if factors is None
                            else factors(t)
                        )
                        samples = sampled_parameters(learner, draws["normal"][i], root)

                        def utility_of(query, samples=samples):
                            x = query["context"]
                            return np.array([max(sample[j] @ x for sample in samples) for j in range(number)])

                    if scheduling == "acqb":
                        query, assortment = best_query(waiting, utility_of, size)
                    else:
                        query = pick(scheduling, waiting, word)
                        assortment = best_assortment(utility_of(query), size)

            utility = true_utility(query)
            probability, _ = choice_probabilities(utility, assortment)
            chosen, upper = None, 0.0
            for j, p in zip(assortment, probability, strict=True):
                upper += p
                if u <= upper:
                    chosen = j
                    break
            best = departure_rate(utility, best_assortment(utility, size))
            out["query"][i], out["assortment"][i], out["served"][i] = query["arrived"], assortment, 1
            out["regret"][i] = best - departure_rate(utility, assortment)
            out["retrial"][i] = chosen is None
            if chosen is None:
                query["served"] += 1
            else:
                waiting.remove(query)
                out["departed"][i], out["sojourn"][i] = 1, t - query["arrived"]
                departed_retrials[i] = query["served"]
                stays.append(t - query["arrived"])
            for j in assortment:
                offered[j] += 1
                accepted[j] += chosen == j
            if policy in CONTEXT_POLICIES:
                learner.learn(query["context"], assortment, chosen)
        out["theta"][i] = learner.theta
        if stays:
            p95[i] = sorted(stays)[math.ceil(0.95 * len(stays) - 1e-9) - 1]

        if oracle_waiting:
            query, assortment = best_query(oracle_waiting, true_utility, size)
            if u <= departure_rate(true_utility(query), assortment):
                oracle_waiting.remove(query)
        if noise["arrives"][i]:
            for queue in (waiting, oracle_waiting):
                queue.append({"arrived": t, "context": np.asarray(noise["context"][i]), "served": 0})
        out["waiting"][i] = len(waiting)
    out["sojourn_p95"], out["departed_retrials"], out["offers"] = p95, departed_retrials, offered
    return out
