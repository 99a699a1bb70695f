"""Choose the settings of `mnist-ood` and `digits` on rows held out: python benchmarks/uncertainty_choice.py [mnist-ood | digits].

The last 10,000 training rows of MNIST, and 360 rows of the first split of digits; test rows and letters are not looked at. Minutes
on one core; what it printed is docs/uncertainty/choice.txt.
"""

import sys
from dataclasses import replace

import torch
from langevin_paper.experiments.digits import DIGITS
from langevin_paper.experiments.mnist_ood import MNIST_OOD

from langevin import priors

PRIORS = {std: priors.to_plain(priors.fan_in(std=std)) for std in (3.0, 6.0, 12.0)}
LADDERS = {
    "mnist-ood": {
        "ensemble": [{"lr": lr, "end_lr": end} for lr, end in ((2e-3, 5e-4), (3e-3, 1e-3), (5e-3, 5e-4), (1e-2, 5e-4))],
        "sghmc": [{"prior": PRIORS[std], "end_lr": end} for std, end in ((3.0, 0.05), (6.0, 0.05), (6.0, 0.2))],
        "sghmc-cold": [{"prior": PRIORS[std], "end_lr": 0.05} for std in (3.0, 6.0, 12.0)],
        "msgld": [{"prior": PRIORS[std], "end_lr": 0.05} for std in (3.0, 6.0)],
        "asgld": [{"prior": PRIORS[6.0], "bias_factor": factor} for factor in (100.0, 300.0, 1_000.0)],
    },
    "digits": {
        "ensemble": [{"lr": lr, "end_lr": 1e-3} for lr in (3e-3, 1e-2, 3e-2)],
        "sghmc": [{"lr": 0.2, "end_lr": end} for end in (0.05, 0.2)],
    },
}


def main(names):
    torch.set_num_threads(1)
    for experiment in (MNIST_OOD, DIGITS):
        if names and experiment.name not in names:
            continue
        print(experiment.name)
        for name, ladder in LADDERS[experiment.name].items():
            method = experiment.method(name)
            for changed in ladder:
                chosen = replace(method, settings={**method.settings, **changed})
                found = experiment.run(chosen, experiment.scale("short"), range(1), None, lambda share: None)[0]
                shown = ", ".join(f"{key} {value['std'] if key == 'prior' else value:.4g}" for key, value in changed.items())
                numbers = f"accuracy {found['accuracy']:.2f}  NLL {found['nll']:.4f}  ECE {found['ece']:.2f}"
                print(f"  {name:11s}{shown:32s}{numbers}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
