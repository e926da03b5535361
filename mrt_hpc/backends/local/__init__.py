"""The local back end: tasks as processes of this machine."""
