"""What every role is given: its task, its peers, and the request to shut down."""
