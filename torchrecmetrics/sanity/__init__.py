"""Questions about data of the right shape that may mean something else."""
