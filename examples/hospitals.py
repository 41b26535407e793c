"""Train one model over eight hospitals from a CSV file, and test it at each of them.

The column `hospital` says whose row each is, and `outcome` is what to predict. The file has 600
invented patients. The same in two commands:

    fedpage data show examples/patients.csv --label outcome --client-column hospital
    fedpage run secantpage --data examples/patients.csv --label outcome --client-column hospital \
        --alpha 0.01 --standardise --held-out 0.25 --metrics accuracy_worst --S 4 --rounds 100
"""

from pathlib import Path

import fedpage as fp

file = Path(__file__).with_name("patients.csv")
data = fp.load(file, label="outcome", client="hospital", standardise=True)
train, test = data.split(test=0.25, seed=0)
problem = fp.LogisticRegression(train, alpha=0.01, held_out=test, metrics="accuracy_worst")
history = fp.simulate(problem, fp.SecantPAGE(S=4), rounds=100, seed=0)
print(problem)
print(f"test accuracy {history.last('held_out_accuracy'):.3f} of all rows; by hospital:")
print(problem.client_scores(history.x, test, metric="accuracy"))
fp.plot_partition(problem, path="hospitals.png")
