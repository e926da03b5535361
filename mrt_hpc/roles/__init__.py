"""What array tasks do: one module a role, each with ``run(task)``. Roles are idempotent and know no Slurm."""
