"""What the commands show of runs: their state, history, speed and logs, and why they wait or have failed."""
