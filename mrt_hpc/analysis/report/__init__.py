"""The report of runs: its content as sections of tables and figures, its sample traces, and its two forms as files."""
