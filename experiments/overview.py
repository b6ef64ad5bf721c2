"""Draws the picture of the README: what each system's learner loses to the optimal policy, beside its rivals.

python experiments/overview.py overview.png
"""

import sys

import matplotlib.pyplot as plt

import jaxcascade as jc


def studies():
    """One small study of each system."""
    return {
        "cascade: which APIs to ask": jc.compare(
            jc.cascade.synthetic("A", context_size=20, output_size=20),
            {
                "DOW": jc.cascade.dow(calibration=100),
                "static plug-in": jc.cascade.static_plugin(calibration=100),
                "LinUCB": jc.cascade.lin_ucb(calibration=100),
            },
            num_steps=3_000,
            num_seeds=30,
            record=20,
        ),
        "queueing: whom to serve, by which LLM": jc.compare(
            jc.queueing.synthetic(),
            {
                "ACQB": jc.queueing.acqb(estimator="one_pass"),
                "CQB-eps": jc.queueing.cqb_eps(estimator="one_pass"),
                "Q-ThS": jc.queueing.q_ths(),
            },
            num_steps=1_000,
            num_seeds=100,
            record=20,
        ),
        "deferral: answer, or ask the expert": jc.compare(
            jc.deferral.from_log("mot_gpt35_date_cot1_40@20"),
            {
                "KL-PBD": jc.deferral.kl_pbd(),
                "NBD": jc.deferral.naive_bellman(),
                "KL-UCB-4P": jc.deferral.kl_ucb_4p(),
            },
            num_steps=5_000,
            num_seeds=50,
            record=20,
        ),
    }


def main(path):
    """Run, draw and save."""
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    for ax, (title, study) in zip(axes, studies().items(), strict=True):
        study.plot("regret", ax=ax)
        legend = ax.get_legend()  # inside, where there is room
        ax.legend(legend.legend_handles, [text.get_text() for text in legend.get_texts()], loc="upper left")
        ax.set_title(title)
    figure.savefig(path, dpi=80)


if __name__ == "__main__":
    main(sys.argv[1])
