"""Run rounds of a method: the round, the policy for failing clients, the loop, the simulator."""
