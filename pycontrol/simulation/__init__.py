"""The cluster in virtual time: workloads, simulated Agents and YARN around the production Arbiter."""
