"""What `mrt-hpc init` and `mrt-hpc doctor` find out about a cluster, and the site profile that follows from it."""
