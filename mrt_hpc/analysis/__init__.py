"""What a run has shown: its numbers with their uncertainty, its figures and its report."""
