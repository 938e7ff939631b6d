"""The simulator: workloads, simulated Agents and a simulated YARN in virtual time around the production Arbiter."""
