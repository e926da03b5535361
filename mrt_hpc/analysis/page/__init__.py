"""The report as one HTML page: its content, its figures, its sample traces, and how they become a file."""
