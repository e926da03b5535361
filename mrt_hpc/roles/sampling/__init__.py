"""What inference and evaluation share: servers, starts, graded traces, and what of them is there already."""
