"""Compare FedPAGE and SCAFFOLD on a9a if it is available, else on the bundled synthetic data."""

import fedpage as fp
from fedpage.data import registry

name = "a9a" if registry.find(registry.libsvm_file("a9a")) else "census"
data = fp.load(name)
problem = fp.RobustRegression(data, clients=3250)
methods = [fp.FedPAGE(S=10, K=10, eta_g=0.1), fp.SCAFFOLD(S=20, K=10, eta_l=0.01, b=4)]
histories = fp.sweep(problem, methods, rounds=500, seeds=3)
for history in histories:
    spent = history.cost_to(0.05, cost="bytes")
    print(history, f"- bytes to a gradient norm of 0.05: {spent:,.0f}")
fp.plot(histories, "quickstart.png", x="bytes")
print("plot: quickstart.png")
