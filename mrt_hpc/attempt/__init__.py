"""One start of one task: its entry, its ranks and GPUs, the ledger of jobs, and the state after its end."""
